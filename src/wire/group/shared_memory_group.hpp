#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/concepts/peer_memory.hpp"
#include "wire/group/group.hpp"
#include "wire/shm/staging.hpp"

namespace guozhuang::wire {

/// The PeerMemory of a process set whose ranks are on one host: collective algorithms stage data in
/// it. For one thread at a time. Everything that the group refers to must outlive it.
///
/// A round may be *offered* before the ranks have agreed on an operation, with a fingerprint of the
/// call. It goes ahead if all ranks offer it with the same fingerprint. A rank that doubts this
/// first says so in the verdict, then looks at the offers once more: if some are missing, the round
/// is off, and all ranks skip it. docs/decisions/038 and tests/model/offers.pml show why this is
/// right.
class SharedMemoryGroup {
public:
    /// `staging`: for as many ranks, used by no other object; must outlive this.
    SharedMemoryGroup(const Group& group, const Staging& staging);

    int rank() const noexcept { return group_.group_rank; }
    int size() const noexcept { return static_cast<int>(group_.ranks.size()); }
    bool ranks_share_cores() const noexcept {
        return group_.transport.topology().ranks_share_cores;
    }
    std::uint64_t round() const noexcept { return round_; }
    std::span<std::byte> room(int peer, std::uint64_t round) const noexcept {
        return staging_.room(peer, round);
    }
    std::span<std::byte, note_bytes> note(int peer, std::uint64_t round) const noexcept {
        return staging_.head(peer, round).note;
    }
    std::size_t put(std::span<std::byte> room, std::span<const std::byte> bytes) noexcept;

    void publish(std::size_t bytes);
    /// Throws Error(aborted), Error(timeout), or what the pump throws; for an offered round it does
    /// not throw.
    bool await(std::uint64_t round);
    void answer(std::uint64_t round, std::size_t bytes);
    void await_answers(std::uint64_t round);

    RegionRef locate(std::span<const std::byte> memory) const {
        return group_.transport.regions()->locate(memory);
    }
    std::span<std::byte> at(int peer, const RegionRef& ref) const;
    void yield_to_others() {
        if (group_.pump != nullptr) group_.pump->pump();
    }

    /// Call it before each operation that the ranks have agreed on.
    void begin() noexcept { leave_out_doubted(); }
    /// Call it before an operation that they have not agreed on: offers its first round. Returns
    /// false if it cannot: the others have gone on without this rank, or may not be done with an
    /// earlier round.
    bool begin_offer(std::uint64_t fingerprint) noexcept;
    /// Declines the round that others have offered, if there is one, because this rank does
    /// something else.
    void decline() noexcept;

    /// Sets whether data that this rank writes from now on bypasses its caches. Each rank may
    /// choose for itself.
    void set_streams(bool streams) noexcept { streams_ = streams; }
    bool streams() const noexcept { return streams_; }

    /// publish_cost: sets this rank's cost in a slot; the others can read it after the next round.
    /// least_cost: the least that any rank has published in the slot.
    void publish_cost(std::size_t slot, float cost) noexcept {
        staging_.progress[static_cast<std::size_t>(rank())].costs[slot] = cost;
    }
    float least_cost(std::size_t slot) const noexcept;

private:
    /// The last two bits of the verdict; before them stands the round.
    enum : std::uint64_t { doubted = 1, off = 2, on = 3 };

    template <class Word>
    void await_all(std::uint64_t round, const Word& word);
    void fence() noexcept;
    bool goes_ahead(std::uint64_t round) noexcept;
    bool await_offers(std::uint64_t round);
    bool settle(std::uint64_t round) noexcept;
    bool all_have_offered(std::uint64_t round) const noexcept;
    std::uint64_t doubted_round() const noexcept { return staging_.verdict->word.load() / 4; }
    void leave_out_doubted() noexcept;
    void leave_out(std::uint64_t round) noexcept;

    Group group_;
    Staging staging_;
    std::uint64_t round_ = 1;
    std::uint64_t offer_ = 0;        ///< of the next round to be published; 0: it is agreed on
    std::uint64_t offered_ = 0;      ///< the round that this rank has offered and not yet awaited
    std::size_t bytes_offered_ = 0;  ///< in that round
    /// No rank still needs a room that this one may write: all have published the round before.
    bool may_offer_ = true;
    bool streams_ = false;
    bool streamed_ = false;  ///< whether something was streamed in this round
};

static_assert(PeerMemory<SharedMemoryGroup>);

}  // namespace guozhuang::wire
