#pragma once

#include <cstddef>
#include <span>

#include "collectives/layout/scratch.hpp"

namespace guozhuang::staged {

/// The largest section if a room is cut into one section for each rank.
constexpr std::size_t section_limit_bytes(std::size_t room_bytes, int ranks) noexcept {
    return room_bytes / static_cast<std::size_t>(ranks) / scratch_alignment * scratch_alignment;
}

/// The section of that number; `bytes`: of each section.
inline std::span<std::byte> section(std::span<std::byte> room, int number,
                                    std::size_t bytes) noexcept {
    return room.subspan(static_cast<std::size_t>(number) * bytes, bytes);
}

/// The scratch of a staged algorithm: its terms, by rank.
inline std::size_t stage_scratch_bytes(int ranks) {
    return padded_array<std::span<const std::byte>>(static_cast<std::size_t>(ranks));
}

}  // namespace guozhuang::staged
