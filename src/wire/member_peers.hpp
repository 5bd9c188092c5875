#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/failpoint.hpp"
#include "collectives/peer_memory.hpp"
#include "wire/group.hpp"

namespace guozhuang::wire {

/// The PeerMemory of a group of ranks of one host: what the collective algorithms stage in. One thread at a time, and only one object for a
/// staging memory. What the group refers to must outlive it.
class MemberPeers {
public:
    /// `staging`: a stage of each member, by position.
    MemberPeers(Group group, Staging staging)
        : group_(std::move(group)), staging_(staging), round_(progress(rank()).load(std::memory_order_seq_cst)) {}

    int rank() const noexcept { return group_.position; }
    int size() const noexcept { return static_cast<int>(group_.members.size()); }
    std::span<std::byte> stage(int peer) const noexcept { return staging_.stage(peer); }
    std::uint64_t round() const noexcept { return round_; }

    void publish(std::size_t bytes) {
        base::pass(base::Failpoint::round_publish);
        group_.transport.count_staged(bytes);
        progress(rank()).store(++round_, std::memory_order_seq_cst);
        for (int peer = 0; peer < size(); ++peer)
            if (peer != rank()) group_.transport.nudge(world_rank(peer));
    }

    /// Throws Error(aborted), Error(timeout), or what the pump throws.
    void await() {
        base::pass(base::Failpoint::round_await);
        for (int peer = 0; peer < size(); ++peer)
            group_.wait_until([&] { return progress(peer).load(std::memory_order_seq_cst) >= round_; });
    }

    Place place(std::span<const std::byte> memory) const { return group_.transport.regions()->place(memory); }
    std::span<std::byte> at(int peer, const Place& place) const {
        const auto memory = group_.transport.regions()->at(world_rank(peer), place);
        if (memory.empty() && base::is_aborted(group_.transport.doorbell())) base::throw_cause(group_.transport.doorbell());
        return memory;
    }
    void attend() {
        if (group_.pump) group_.pump();
    }

private:
    int world_rank(int peer) const noexcept { return group_.members[static_cast<std::size_t>(peer)]; }
    std::atomic<std::uint64_t>& progress(int peer) const noexcept { return staging_.progress[static_cast<std::size_t>(peer)].rounds; }

    Group group_;
    Staging staging_;
    std::uint64_t round_;  ///< goes on from what this rank has ended before
};

static_assert(PeerMemory<MemberPeers>);

}  // namespace guozhuang::wire
