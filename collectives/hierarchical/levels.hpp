#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/staged/sections.hpp"

/// The common parts of operations by levels: within a host data goes through memory that its ranks
/// have mapped, across hosts as messages. There may be one host.
namespace guozhuang::hierarchical {

/// Ranks numbered host by host.
class RanksByHost {
public:
    /// `ranks`: how many are on each host. `rank`: one of them, whose host is `host()`.
    RanksByHost(std::span<const int> ranks, int rank) : rank_(rank) {
        for (const int each : ranks) first_.push_back(first_.back() + each);
        host_ = host_of(rank);
    }

    int ranks() const noexcept { return first_.back(); }
    int rank() const noexcept { return rank_; }
    int hosts() const noexcept { return static_cast<int>(first_.size()) - 1; }
    int host() const noexcept { return host_; }
    int host_of(int rank) const noexcept {
        return static_cast<int>(std::ranges::upper_bound(first_, rank) - first_.begin()) - 1;
    }
    /// The host this many after this rank's, around.
    int host_after(int hosts) const noexcept {
        return (host_ + hosts + this->hosts()) % this->hosts();
    }
    /// How many hosts after that of a rank this one is, around.
    int hosts_from(int rank) const noexcept { return (host_ - host_of(rank) + hosts()) % hosts(); }
    int first(int host) const noexcept { return first_[static_cast<std::size_t>(host)]; }
    int size(int host) const noexcept { return first(host + 1) - first(host); }
    int local_rank(int rank) const noexcept { return rank - first(host_of(rank)); }

    /// Who handles the data of a rank on a host: there the rank itself, elsewhere the ranks of the
    /// host in turn.
    int carrier(int rank, int host) const noexcept {
        const int begin = first(host), ranks = size(host);
        if (begin <= rank && rank < begin + ranks) return rank;
        return begin + (rank < begin ? rank : rank - ranks) % ranks;
    }
    /// The ranks whose data this rank handles, among `count` from `first` on, around.
    std::vector<int> carried(int first, int count) const {
        std::vector<int> carried;
        for (int i = 0; i < count; ++i)
            if (const int each = (first + i) % ranks(); carrier(each, host_) == rank_)
                carried.push_back(each);
        return carried;
    }

private:
    std::vector<int> first_ = {0};  ///< rank of each host, and one past the last
    int rank_ = 0, host_ = 0;
};

/// The longest segment if a room holds this many.
template <PeerMemory P>
std::size_t longest_segment_bytes(P& local, int segments) {
    return staged::section_limit_bytes(local.room(local.rank(), local.round()).size(), segments);
}

/// The messages of chunks in flight: `each` of a chunk, all with room for a segment, or none.
template <Wire W>
class Messages {
public:
    struct Message {
        std::span<std::byte> room, bytes;
        typename W::Ticket incoming{}, outgoing{};
    };

    Messages(const Chunks& chunks, std::size_t each, bool in_place = false)
        : each_(each), slots_(chunks.slots()), room_bytes_(in_place ? 0 : chunks.segment_bytes()) {}

    std::size_t scratch_bytes() const {
        return padded_array<Message>(slots_ * each_) + slots_ * each_ * room_bytes_;
    }
    void cut_from(Scratch& scratch) {
        all_ = scratch.cut_array<Message>(slots_ * each_);
        for (auto& message : all_) message.room = scratch.cut(room_bytes_);
    }

    std::span<Message> of(std::size_t chunk) const {
        return all_.subspan(chunk % slots_ * each_, each_);
    }

private:
    std::size_t each_, slots_, room_bytes_;
    std::span<Message> all_;
};

/// Takes chunks through an operation on one rank. In step s, chunk s is staged out for the ranks of
/// the host, which find it in the next round. Chunk s-1 is started across hosts; older chunks take
/// some of their hops; the result of the oldest one in flight is published; and the chunk before
/// that is copied in. Sends come first, waits last. Without hops an operation ends with start(),
/// and without results with the last hop.
template <PeerMemory P, class Operation>
void by_levels(P& local, const Chunks& chunks, int hops, Operation& operation) {
    constexpr bool has_results = requires { operation.copy_in(std::size_t{}); };
    if (chunks.count() == 0) return;
    // Steps from the first hop of a chunk to its last; 0 if there is only one chunk.
    const auto lag = hops == 0 ? 0 : chunks.slots() - 1;
    const auto last_step = chunks.count() + (hops == 0 ? 0 : lag + (has_results ? 1 : 0));
    // The age of a chunk: how many steps ago it entered.
    const auto with_chunk = [&](std::size_t step, std::size_t age, const auto& act) {
        if (step >= age && step - age < chunks.count()) act(step - age);
    };
    const auto hops_done = [&](std::size_t age) {
        return static_cast<int>(age * static_cast<std::size_t>(hops) / (lag + 1));
    };
    // Chunks take turns, hop by hop: while this rank waits for one, messages of the others travel.
    const auto advance = [&](std::size_t step) {
        for (int turn = 0; turn <= hops / static_cast<int>(lag + 1); ++turn)
            for (std::size_t age = lag + 1; age > 0; --age)
                with_chunk(step, age, [&](std::size_t chunk) {
                    const int hop = hops_done(age - 1) + turn;
                    if (hop < hops_done(age)) operation.hop(chunk, hop);
                });
    };
    for (std::size_t step = 0; step <= last_step; ++step) {
        if (step > 0) local.await(local.round() - 1);
        std::size_t bytes = 0;
        with_chunk(step, 1, [&](std::size_t chunk) { operation.start(chunk); });
        if constexpr (has_results)
            with_chunk(step, lag + 2, [&](std::size_t chunk) { operation.copy_in(chunk); });
        with_chunk(step, 0, [&](std::size_t chunk) { bytes += operation.stage_out(chunk); });
        advance(step);
        if constexpr (has_results)
            with_chunk(step, lag + 1,
                       [&](std::size_t chunk) { bytes += operation.publish_result(chunk); });
        if (step < last_step) local.publish(bytes);
    }
}

}  // namespace guozhuang::hierarchical
