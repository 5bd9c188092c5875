#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace guozhuang {

/// Names memory of a rank for the others of its group: bytes [begin, begin + bytes) of that memory
/// are at `offset` of a region. Region 0: the memory is private. Plain bytes.
struct RegionRef {
    std::uint64_t region = 0;
    std::uint64_t offset = 0;
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
};

/// How an algorithm reaches the other ranks of its group through memory that all have mapped. Ranks
/// are group ranks, 0 .. size()-1.
///
/// Every rank has a *stage*, of the same size on all ranks and aligned to scratch_alignment. All
/// ranks may read it; only its own rank writes it. Work goes in *rounds*: `publish` ends this
/// rank's round, in which it has written `bytes` to its stage. `await` returns once every rank has
/// ended as many rounds as this one, which then sees all that was written in them. So while a rank
/// is in round r, others may still read what was written in round r-1, but nothing older. Rounds
/// are counted on from one operation to the next.
///
/// Other memory may be mapped by all ranks, too. `locate` names this rank's memory for the others:
/// all of it or the largest part that they can reach. `at` gives the memory that a rank has named
/// (empty: this rank cannot reach it). Rounds order what is written there as they do on the stages.
///
/// `put` copies to this rank's stage, in the way that lets the others read it fastest.
///
/// Call `yield_to_others` every MiB or so inside a long copy loop: it lets control messages and
/// other process sets make progress. `publish`, `await` and `yield_to_others` may throw
/// guozhuang::Error (the job was aborted); algorithms do not catch it.
template <class P>
concept PeerMemory =
    requires(P& group, int peer, std::size_t bytes, std::span<const std::byte> memory,
             std::span<std::byte> room, const RegionRef& ref) {
        { group.rank() } -> std::same_as<int>;
        { group.size() } -> std::same_as<int>;
        { group.stage(peer) } -> std::same_as<std::span<std::byte>>;
        /// The number of rounds that this rank has ended: it is in the round of that number.
        { group.round() } -> std::same_as<std::uint64_t>;
        /// Returns how many bytes it has copied: all of `memory`.
        { group.put(room, memory) } -> std::same_as<std::size_t>;
        { group.publish(bytes) } -> std::same_as<void>;
        { group.await() } -> std::same_as<void>;
        { group.locate(memory) } -> std::same_as<RegionRef>;
        { group.at(peer, ref) } -> std::same_as<std::span<std::byte>>;
        { group.yield_to_others() } -> std::same_as<void>;
    };

}  // namespace guozhuang
