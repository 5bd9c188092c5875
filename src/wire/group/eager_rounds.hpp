#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/group/group.hpp"
#include "wire/shm/eager_slots.hpp"

namespace guozhuang::wire {

/// Rounds in which the ranks of one host give each other small data before they have agreed on an
/// operation: each offers what it has, with a fingerprint of what it is for. If all offer the same
/// kind, the round goes ahead; if one offers something else, declines, or is late, it does not, and
/// nothing has happened. Whichever rank first sees how it is decides, for all: with a
/// compare-exchange, so there is one decision. No rank ever depends on another to leave a round.
///
/// For one thread at a time. Whatever the group refers to must outlive it. docs/decisions/038 and
/// tests/model/eager.pml say why it is right.
class EagerRounds {
public:
    /// `slots`: of as many ranks, used by no other object; must outlive this.
    EagerRounds(const Group& group, const EagerSlots& slots);

    /// Where this rank writes what it offers in its next round, up to EagerSlots::capacity bytes.
    /// Empty: the others have gone on without it, or have not finished an earlier round, so it can
    /// offer nothing now.
    std::span<std::byte> begin() noexcept;
    /// After begin(): offers what was written. True if the round goes ahead: then data_of() is what
    /// the ranks have given, until finish(). Waits as long as a thread spins, or, where it must not
    /// spin, sleeps for a millisecond at most.
    bool offer(std::uint64_t fingerprint, std::size_t bytes) noexcept;
    std::span<const std::byte> data_of(int peer) const noexcept {
        return offer_of(peer, round_).data;
    }
    /// After a round that went ahead: this rank needs data_of() no more.
    void finish() noexcept;
    /// Declines the round that others have opened, if there is one: this rank is about something
    /// else.
    void decline() noexcept;

private:
    EagerSlots::Offer& offer_of(int peer, std::uint64_t round) const noexcept {
        return slots_.ranks[static_cast<std::size_t>(peer)].offers[round % 2];
    }
    bool all_have_finished(std::uint64_t round) noexcept;
    bool goes_ahead(std::uint64_t fingerprint) noexcept;
    bool decide(std::uint64_t round, bool goes_ahead) noexcept;
    bool is_decided(std::uint64_t round) const noexcept;
    void leave(std::uint64_t round) noexcept;

    Group group_;
    EagerSlots slots_;
    std::uint64_t round_;                ///< in which this rank offers, or will offer next
    std::uint64_t finished_by_all_ = 0;  ///< a round that all have finished, perhaps not the last
};

}  // namespace guozhuang::wire
