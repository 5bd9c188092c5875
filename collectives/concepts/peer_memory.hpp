#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace guozhuang {

/// Where some memory of a rank lies for the others of its group: bytes [begin, begin + bytes) of it
/// are at `offset` of a region. Region 0: nowhere, it is private. Plain bytes.
struct RegionRef {
    std::uint64_t region = 0;
    std::uint64_t offset = 0;
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
};

/// How an algorithm reaches the other ranks of its group through memory that all have mapped; ranks
/// are group ranks, 0 .. size()-1.
///
/// Every rank has a *stage*, aligned to scratch_alignment and of one size on all ranks, which all
/// may read and only it writes. Work goes in *rounds*: `publish` ends this rank's round, in which
/// it wrote `bytes` to its stage, and `await` returns once every rank has ended as many rounds as
/// this one; it then sees all they wrote in them. Rounds are counted on from one operation to the
/// next. So while a rank is in round r after an await, others may still read what was written in
/// round r-1, but nothing older.
///
/// Memory outside of the stages may be mapped by all, too: `locate` says where the others find some
/// of this rank's, or the largest part of it that they can, and `at` gives a rank's memory there
/// (empty: this rank cannot reach it). Rounds order what is written there just as on the stages.
///
/// `put` copies to this rank's stage, in the way that lets the others read it fastest.
///
/// Call `yield_to_others` every MiB or so inside a long copy loop: it lets control messages and
/// other process sets make progress. `publish`, `await` and `yield_to_others` may throw
/// guozhuang::Error (the job was aborted); the algorithm lets it pass.
template <class P>
concept PeerMemory =
    requires(P& group, int peer, std::size_t bytes, std::span<const std::byte> memory,
             std::span<std::byte> room, const RegionRef& ref) {
        { group.rank() } -> std::same_as<int>;
        { group.size() } -> std::same_as<int>;
        { group.stage(peer) } -> std::same_as<std::span<std::byte>>;
        /// The round that this rank is in: how many it has ended.
        { group.round() } -> std::same_as<std::uint64_t>;
        /// Returns how many bytes it has copied: those of `memory`.
        { group.put(room, memory) } -> std::same_as<std::size_t>;
        { group.publish(bytes) } -> std::same_as<void>;
        { group.await() } -> std::same_as<void>;
        { group.locate(memory) } -> std::same_as<RegionRef>;
        { group.at(peer, ref) } -> std::same_as<std::span<std::byte>>;
        { group.yield_to_others() } -> std::same_as<void>;
    };

}  // namespace guozhuang
