#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::staged {

/// How the staged algorithms use a stage. In a round a rank may write its *contributions*, a
/// segment of each block, or *refs* instead; and a segment that it has *reduced*. Each of these has
/// two rooms, for even and odd rounds: what is written in round r is read in round r+1, and
/// overwritten in round r+2 at the earliest, when every rank has ended round r+1.
class StageLayout {
public:
    StageLayout(std::size_t stage_bytes, int ranks) noexcept
        : ranks_(static_cast<std::size_t>(ranks)),
          segment_bytes_(stage_bytes <= 2 * head_bytes
                             ? 0
                             : (stage_bytes / 2 - head_bytes) / (ranks_ + 1) / scratch_alignment *
                                   scratch_alignment) {}

    /// The room for one segment; 0 if the stage is too small for so many ranks.
    std::size_t segment_bytes() const noexcept { return segment_bytes_; }
    /// The room for all contributions of a round.
    std::size_t contribution_bytes() const noexcept { return ranks_ * segment_bytes_; }

    /// How many refs there are.
    std::uint64_t& ref_count(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        return *std::launder(reinterpret_cast<std::uint64_t*>(half(stage, round).data()));
    }
    std::span<RegionRef> refs(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        const auto room = contributions(stage, round);
        return {std::launder(reinterpret_cast<RegionRef*>(room.data())),
                room.size() / sizeof(RegionRef)};
    }
    std::span<std::byte> contributions(std::span<std::byte> stage,
                                       std::uint64_t round) const noexcept {
        return half(stage, round).subspan(head_bytes, contribution_bytes());
    }
    std::span<std::byte> contributions(std::span<std::byte> stage, std::uint64_t round,
                                       int block) const noexcept {
        return contributions(stage, round)
            .subspan(static_cast<std::size_t>(block) * segment_bytes_, segment_bytes_);
    }
    std::span<std::byte> reduced(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        return half(stage, round).last(segment_bytes_);
    }

private:
    static constexpr std::size_t head_bytes = scratch_alignment;

    std::span<std::byte> half(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        const auto bytes = head_bytes + contribution_bytes() + segment_bytes_;
        return stage.subspan(round % 2 * bytes, bytes);
    }

    std::size_t ranks_;
    std::size_t segment_bytes_;
};

/// The scratch of a staged algorithm: its terms, by rank.
inline std::size_t stage_scratch_bytes(int ranks) {
    return padded_array<std::span<const std::byte>>(static_cast<std::size_t>(ranks));
}

}  // namespace guozhuang::staged
