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

/// A few bytes that reach the others together with the word that publishes a round.
inline constexpr std::size_t note_bytes = 48;

/// How an algorithm reaches the other ranks of its group through memory that all have mapped. Ranks
/// are group ranks, 0 .. size()-1.
///
/// Work goes in *rounds*, whose count continues from one operation to the next. For each round
/// every rank has a *room*, of the same size on all ranks and aligned to scratch_alignment, and a
/// *note* of note_bytes. In round r a rank writes its own room and note of r, and ends that with
/// publish(): then it is in round r+1. await(r) returns once all ranks have published round r; from
/// then on this rank may read what they have written. A round may have *answers*: after await(r) a
/// rank may write to the others' rooms of r, too, each to its own parts, and then calls answer(r).
/// await_answers(r) returns once all ranks have. Answers may also be written to other memory that
/// all ranks have mapped.
///
/// A room is reused three rounds later: before a rank writes its room of round r+3 it has awaited
/// round r+1, and the answers of round r if there are any.
///
/// The first round of an operation may be an offer, which the ranks have not agreed on: its await
/// returns false, on all of them, if some rank did not offer the same. Then nothing has happened,
/// and the algorithm returns at once.
///
/// `locate` names this rank's memory for the others: all of it or the largest part that they can
/// reach. `at` gives the memory that a rank has named (empty: this rank cannot reach it).
///
/// `put` copies to a room in the way that the others can read fastest.
///
/// Call `yield_to_others` every MiB or so inside a long copy loop: it lets control messages and
/// other process sets make progress. All functions that publish, answer or wait, and
/// `yield_to_others`, may throw guozhuang::Error (the job was aborted); algorithms do not catch it.
template <class P>
concept PeerMemory =
    requires(P& group, int peer, std::uint64_t round, std::size_t bytes,
             std::span<const std::byte> memory, std::span<std::byte> room, const RegionRef& ref) {
        { group.rank() } -> std::same_as<int>;
        { group.size() } -> std::same_as<int>;
        /// Whether there are more ranks than cores; the same on all ranks.
        { group.ranks_share_cores() } -> std::same_as<bool>;
        /// The round that this rank is in.
        { group.round() } -> std::same_as<std::uint64_t>;
        { group.room(peer, round) } -> std::same_as<std::span<std::byte>>;
        { group.note(peer, round) } -> std::same_as<std::span<std::byte, note_bytes>>;
        /// Returns how many bytes it has copied: all of `memory`.
        { group.put(room, memory) } -> std::same_as<std::size_t>;
        /// `bytes`: how many this rank has written.
        { group.publish(bytes) } -> std::same_as<void>;
        { group.await(round) } -> std::same_as<bool>;
        { group.answer(round, bytes) } -> std::same_as<void>;
        { group.await_answers(round) } -> std::same_as<void>;
        { group.locate(memory) } -> std::same_as<RegionRef>;
        { group.at(peer, ref) } -> std::same_as<std::span<std::byte>>;
        { group.yield_to_others() } -> std::same_as<void>;
    };

}  // namespace guozhuang
