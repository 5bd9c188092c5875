#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "base/failpoint.hpp"
#include "collectives/concepts/peer_memory.hpp"
#include "device/host/stream_copy.hpp"
#include "wire/group/group.hpp"
#include "wire/shm/staging.hpp"

namespace guozhuang::wire {

/// The PeerMemory of a process set whose ranks are on one host: collective algorithms stage data in
/// it. For one thread at a time. Whatever the group refers to must outlive it.
class SharedMemoryGroup {
public:
    /// `staging`: of as many ranks, used by no other object; must outlive this.
    SharedMemoryGroup(const Group& group, const Staging& staging)
        : group_(group),
          staging_(staging),
          round_(progress(rank()).load(std::memory_order_seq_cst)) {}

    int rank() const noexcept { return group_.group_rank; }
    int size() const noexcept { return static_cast<int>(group_.ranks.size()); }
    std::span<std::byte> stage(int peer) const noexcept { return staging_.stage(peer); }
    std::uint64_t round() const noexcept { return round_; }

    std::size_t put(std::span<std::byte> room, std::span<const std::byte> bytes) noexcept {
        bytes_put_ += bytes.size();
        if (streams_ && bytes.size() >= least_streamed) {
            device::stream_copy(room, bytes);
            streamed_ = true;
        } else if (!bytes.empty()) {
            std::memcpy(room.data(), bytes.data(), bytes.size());
        }
        return bytes.size();
    }

    void publish(std::size_t bytes) {
        base::pass(base::Failpoint::round_publish);
        if (std::exchange(streamed_, false)) device::fence_streamed();
        group_.transport.count_staged(bytes);
        progress(rank()).store(++round_, std::memory_order_seq_cst);
        group_.nudge_others();
    }

    /// Throws Error(aborted), Error(timeout), or what the pump throws.
    void await() {
        base::pass(base::Failpoint::round_await);
        for (int peer = 0; peer < size(); ++peer)
            group_.wait_until(
                [&] { return progress(peer).load(std::memory_order_seq_cst) >= round_; });
    }

    RegionRef locate(std::span<const std::byte> memory) const {
        return group_.transport.regions()->locate(memory);
    }
    std::span<std::byte> at(int peer, const RegionRef& ref) const {
        const auto memory =
            group_.transport.regions()->at(group_.ranks[static_cast<std::size_t>(peer)], ref);
        if (memory.empty() && base::is_aborted(group_.transport.doorbell()))
            base::throw_cause(group_.transport.doorbell());
        return memory;
    }
    void yield_to_others() {
        if (group_.pump != nullptr) group_.pump->pump();
    }

    /// To be called before each operation. `streams`: what this rank puts on its stage goes past
    /// its caches. Each rank may choose that for itself.
    void begin(bool streams) noexcept {
        streams_ = streams;
        bytes_put_ = 0;
    }
    std::size_t bytes_put() const noexcept { return bytes_put_; }  ///< since begin()

    /// publish_cost: sets this rank's cost in a slot; the others can read it after the next round.
    /// least_cost: the least that any rank has published in the slot.
    void publish_cost(std::size_t slot, float cost) noexcept {
        staging_.progress[static_cast<std::size_t>(rank())].costs[slot] = cost;
    }
    float least_cost(std::size_t slot) const noexcept {
        const auto least = std::ranges::min_element(
            staging_.progress, {}, [slot](const auto& peer) { return peer.costs[slot]; });
        return least->costs[slot];
    }

private:
    /// Smaller copies are not streamed: much of them would be parts of cache lines.
    static constexpr std::size_t least_streamed = 1024;

    std::atomic<std::uint64_t>& progress(int peer) const noexcept {
        return staging_.progress[static_cast<std::size_t>(peer)].rounds;
    }

    Group group_;
    Staging staging_;
    std::uint64_t round_;  ///< goes on from what this rank has ended before
    bool streams_ = false;
    bool streamed_ = false;  ///< whether something was streamed in this round
    std::size_t bytes_put_ = 0;
};

static_assert(PeerMemory<SharedMemoryGroup>);

}  // namespace guozhuang::wire
