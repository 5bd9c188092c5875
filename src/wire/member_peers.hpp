#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "base/failpoint.hpp"
#include "collectives/peer_memory.hpp"
#include "device/host/stream_copy.hpp"
#include "wire/group.hpp"

namespace guozhuang::wire {

/// The PeerMemory of a process set whose ranks are on one host: what the collective algorithms stage in. One thread at a time. What the group refers to
/// must outlive it.
class MemberPeers {
public:
    /// `staging`: of as many ranks, and no other object's; outlives this one.
    MemberPeers(Group group, const Staging& staging)
        : group_(std::move(group)), staging_(staging), round_(progress(rank()).load(std::memory_order_seq_cst)) {}

    int rank() const noexcept { return group_.position; }
    int size() const noexcept { return static_cast<int>(group_.members.size()); }
    std::span<std::byte> stage(int peer) const noexcept { return staging_.stage(peer); }
    std::uint64_t round() const noexcept { return round_; }

    std::size_t put(std::span<std::byte> room, std::span<const std::byte> bytes) noexcept {
        if (apart_ && bytes.size() >= least_streamed) {
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
        for (int peer = 0; peer < size(); ++peer)
            if (peer != rank())
                group_.transport.nudge(group_.members[static_cast<std::size_t>(peer)], base::audience_of(group_.tag.context));
    }

    /// Throws Error(aborted), Error(timeout), or what the pump throws.
    void await() {
        base::pass(base::Failpoint::round_await);
        for (int peer = 0; peer < size(); ++peer)
            group_.wait_until([&] { return progress(peer).load(std::memory_order_seq_cst) >= round_; });
    }

    Place place(std::span<const std::byte> memory) const { return group_.transport.regions()->place(memory); }
    std::span<std::byte> at(int peer, const Place& place) const {
        const auto memory = group_.transport.regions()->at(group_.members[static_cast<std::size_t>(peer)], place);
        if (memory.empty() && base::is_aborted(group_.transport.doorbell())) base::throw_cause(group_.transport.doorbell());
        return memory;
    }
    /// Whether what goes to this rank's stage goes past its cache at present.
    bool streams() const noexcept { return apart_; }
    void attend() {
        if (group_.pump) group_.pump();
    }

    /// What all ranks say before an operation: how many bytes it moves. Now and then they find out whether they share a cache, for that changes where
    /// a hypervisor moves its cores. More ranks than cores cannot: one of them reads from another cache in any case.
    void expect(std::size_t bytes) {
        if (group_.transport.wait_settings().yields) {
            apart_ = bytes > most_for_caches;
        } else if (size() > 1 && bytes >= unprobed_bytes_) {
            unprobed_bytes_ = probed_every_bytes;
            apart_ = hand_over_time() > shared_cache_limit;
        } else {
            unprobed_bytes_ -= std::min(bytes, unprobed_bytes_);
        }
    }

private:
    // Measured: docs/decisions/014-stores.md.
    static constexpr std::size_t least_streamed = 1024;
    static constexpr std::size_t most_for_caches = std::size_t{2} << 20;
    static constexpr std::size_t probed_every_bytes = std::size_t{16} << 20;
    static constexpr auto shared_cache_limit = std::chrono::nanoseconds(150);

    /// From one rank to another, of a round in which there is nothing else to do: the best of a few, since some rank may have been late.
    std::chrono::nanoseconds hand_over_time() {
        constexpr int batches = 3, rounds = 8;
        auto best = std::chrono::nanoseconds::max();
        for (int batch = 0; batch < batches; ++batch) {
            const auto begin = base::Clock::now();
            for (int round = 0; round < rounds; ++round) {
                publish(0);
                await();
            }
            best = std::min<std::chrono::nanoseconds>(best, (base::Clock::now() - begin) / (rounds * (size() - 1)));
        }
        return best;
    }

    std::atomic<std::uint64_t>& progress(int peer) const noexcept { return staging_.progress[static_cast<std::size_t>(peer)].rounds; }

    Group group_;
    Staging staging_;
    std::uint64_t round_;    ///< goes on from what this rank has ended before
    bool apart_ = false;     ///< others read this rank's stage faster from memory than from its cache
    bool streamed_ = false;  ///< in this round
    std::size_t unprobed_bytes_ = 0;
};

static_assert(PeerMemory<MemberPeers>);

}  // namespace guozhuang::wire
