#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "wire/shm/eager_slots.hpp"

namespace guozhuang::wire {

/// Memory in which the ranks of one host stage what they give each other: a stage of each rank, and
/// how many rounds each has ended; and their eager slots. A view. See PeerMemory in
/// collectives/concepts/peer_memory.hpp for who may write what to a stage, and when.
struct Staging {
    struct alignas(64) Progress {
        std::atomic<std::uint64_t> rounds{0};
        std::array<float, 2> costs{};  ///< of operations: see SharedMemoryGroup::publish_cost
    };
    std::span<Progress> progress;  ///< by local rank
    std::span<std::byte> stages;   ///< one after another, all of one size
    EagerSlots eager_slots;

    /// How it lies in shared memory: progress words; eager slots; then, from a page of its own, the
    /// stages.
    static constexpr std::size_t stage_offset(int ranks, int rank,
                                              std::size_t stage_bytes) noexcept {
        // The largest page that Linux uses: a whole number of pages everywhere.
        constexpr std::size_t page_bytes = std::size_t{64} << 10;
        const auto head_bytes = progress_bytes(ranks) + EagerSlots::bytes_for(ranks);
        return (head_bytes + page_bytes - 1) / page_bytes * page_bytes +
               static_cast<std::size_t>(rank) * stage_bytes;
    }
    static constexpr std::size_t bytes_for(int ranks, std::size_t stage_bytes) noexcept {
        return stage_offset(ranks, ranks, stage_bytes);
    }
    /// Once, by whoever has made the memory, of bytes_for(); it begins at a cache line.
    static void initialise(std::span<std::byte> memory, int ranks) noexcept {
        for (int rank = 0; rank < ranks; ++rank)
            ::new (memory.data() + progress_bytes(rank)) Progress;
        EagerSlots::initialise(memory.subspan(progress_bytes(ranks)), ranks);
    }
    static Staging in(std::span<std::byte> memory, int ranks) noexcept {
        return {.progress = {std::launder(reinterpret_cast<Progress*>(memory.data())),
                             static_cast<std::size_t>(ranks)},
                .stages = memory.subspan(stage_offset(ranks, 0, 0)),
                .eager_slots = EagerSlots::in(memory.subspan(progress_bytes(ranks)), ranks)};
    }

    std::span<std::byte> stage(int rank) const noexcept {
        const auto bytes = stages.size() / progress.size();
        return stages.subspan(static_cast<std::size_t>(rank) * bytes, bytes);
    }

private:
    static constexpr std::size_t progress_bytes(int ranks) noexcept {
        return static_cast<std::size_t>(ranks) * sizeof(Progress);
    }
};

}  // namespace guozhuang::wire
