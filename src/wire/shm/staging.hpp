#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "collectives/concepts/peer_memory.hpp"

namespace guozhuang::wire {

/// Memory in which the ranks of one host stage data for each other: the rooms of each rank (see
/// PeerMemory), and the words that say how far each has come. A view.
struct Staging {
    /// A pair of cache lines, which some processors fetch together.
    static constexpr std::size_t line_bytes = 128;
    static constexpr std::size_t rooms = 3;

    /// The beginning of a room. The other ranks wait for `round`.
    struct alignas(64) Head {
        std::atomic<std::uint64_t> round{0};  ///< the last one that its rank has published here
        std::uint64_t offer = 0;  ///< fingerprint of the offered call; 0: the round is agreed on
        std::array<std::byte, note_bytes> note{};
    };
    struct alignas(line_bytes) Progress {
        std::atomic<std::uint64_t> answered{0};  ///< the last round with answers in which it has
        std::array<float, 2> costs{};  ///< of operations: see SharedMemoryGroup::publish_cost
    };
    /// The state of the last round that was offered and doubted: see SharedMemoryGroup.
    struct alignas(line_bytes) Verdict {
        std::atomic<std::uint64_t> word{0};
    };

    Verdict* verdict;
    std::span<Progress> progress;  ///< by local rank
    std::span<std::byte> stages;   ///< one after another, all of one size
    std::size_t stage_bytes;       ///< of each

    /// The layout in shared memory: the verdict, the progress words and, on a new page, the stages,
    /// each of three rooms.
    static constexpr std::size_t stage_offset(int ranks, int rank,
                                              std::size_t stage_bytes) noexcept {
        // The largest page that Linux uses: a whole number of pages everywhere.
        constexpr std::size_t page_bytes = std::size_t{64} << 10;
        return (progress_offset(ranks) + page_bytes - 1) / page_bytes * page_bytes +
               static_cast<std::size_t>(rank) * stage_bytes;
    }
    static constexpr std::size_t bytes_for(int ranks, std::size_t stage_bytes) noexcept {
        return stage_offset(ranks, ranks, stage_bytes);
    }
    /// The size of a room without its head; 0 if the stage is too small.
    static constexpr std::size_t room_bytes(std::size_t stage_bytes) noexcept {
        const auto bytes = stage_bytes / rooms / line_bytes * line_bytes;
        return bytes < sizeof(Head) ? 0 : bytes - sizeof(Head);
    }
    /// Called once by the creator of the memory, which has bytes_for(), is all 0 and begins at a
    /// cache line. The heads need no initialisation: they are plain bytes and integers.
    static void initialise(std::span<std::byte> memory, int ranks) noexcept {
        ::new (memory.data()) Verdict;
        for (int rank = 0; rank < ranks; ++rank)
            ::new (memory.data() + progress_offset(rank)) Progress;
    }
    static Staging in(std::span<std::byte> memory, int ranks) noexcept {
        const auto stages = memory.subspan(stage_offset(ranks, 0, 0));
        return {.verdict = std::launder(reinterpret_cast<Verdict*>(memory.data())),
                .progress = {std::launder(
                                 reinterpret_cast<Progress*>(memory.data() + progress_offset(0))),
                             static_cast<std::size_t>(ranks)},
                .stages = stages,
                .stage_bytes = stages.size() / static_cast<std::size_t>(ranks)};
    }

    Head& head(int rank, std::uint64_t round) const noexcept {
        return *std::launder(reinterpret_cast<Head*>(whole_room(rank, round).data()));
    }
    std::span<std::byte> room(int rank, std::uint64_t round) const noexcept {
        return whole_room(rank, round).subspan(sizeof(Head));
    }

private:
    static constexpr std::size_t progress_offset(int ranks) noexcept {
        return sizeof(Verdict) + static_cast<std::size_t>(ranks) * sizeof(Progress);
    }
    std::span<std::byte> whole_room(int rank, std::uint64_t round) const noexcept {
        const auto bytes = sizeof(Head) + room_bytes(stage_bytes);
        return stages.subspan(static_cast<std::size_t>(rank) * stage_bytes + round % rooms * bytes,
                              bytes);
    }
};

}  // namespace guozhuang::wire
