#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace guozhuang {

/// Where a piece of memory of a rank lies for the others of its group: bytes [begin, begin + bytes)
/// of it are at `offset` of a region. Region 0: nowhere, it is private. Plain bytes.
struct Place {
    std::uint64_t region = 0;
    std::uint64_t offset = 0;
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
};

/// How an algorithm reaches the other ranks of its group through memory that all have mapped; ranks
/// are positions in the group, 0 .. size()-1.
///
/// Every rank has a *stage*, aligned to scratch_alignment and of one size on all ranks, which all
/// may read and only it writes. Work goes in *rounds*: `publish` ends this rank's round, in which
/// it wrote `bytes` to its stage, and `await` returns once every rank has ended as many rounds as
/// this one; it then sees all they wrote in them. Rounds are counted on from one operation to the
/// next. So while a rank is in round r after an await, others may still read what was written in
/// round r-1, but nothing older.
///
/// Memory outside of the stages may be mapped by all, too: `place` says where the others find some
/// of this rank's, or the largest part of it that they can, and `at` gives a rank's memory there
/// (empty: this rank cannot reach it). Rounds order what is written there just as on the stages.
///
/// `put` copies to this rank's stage, in the way that lets the others read it fastest.
///
/// `attend` is for those who move much between two rounds: others have their turn. `publish`,
/// `await` and `attend` may throw guozhuang::Error (the job was aborted); the algorithm lets it
/// pass.
template <class P>
concept PeerMemory =
    requires(P& peers, int peer, std::size_t bytes, std::span<const std::byte> memory,
             std::span<std::byte> room, const Place& place) {
        { peers.rank() } -> std::same_as<int>;
        { peers.size() } -> std::same_as<int>;
        { peers.stage(peer) } -> std::same_as<std::span<std::byte>>;
        /// The round that this rank is in: how many it has ended.
        { peers.round() } -> std::same_as<std::uint64_t>;
        /// Returns how many bytes it has copied: those of `memory`.
        { peers.put(room, memory) } -> std::same_as<std::size_t>;
        { peers.publish(bytes) } -> std::same_as<void>;
        { peers.await() } -> std::same_as<void>;
        { peers.place(memory) } -> std::same_as<Place>;
        { peers.at(peer, place) } -> std::same_as<std::span<std::byte>>;
        { peers.attend() } -> std::same_as<void>;
    };

}  // namespace guozhuang
