#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/scratch.hpp"

namespace guozhuang::direct {

/// How the algorithms that stage use a stage: in every round a rank may *give* a segment of each block and may show a segment that it has
/// *reduced*. Both have two places, for even and odd rounds: what is written in round r is read in round r+1 and written over in round r+2 at
/// the earliest, which begins when every rank has ended round r+1.
class StageLayout {
public:
    StageLayout(std::size_t stage_bytes, int ranks) noexcept
        : ranks_(static_cast<std::size_t>(ranks)),
          segment_bytes_(stage_bytes / (2 * (ranks_ + 1)) / scratch_alignment * scratch_alignment) {}

    /// Room for one segment; 0: the stage is too small for so many ranks.
    std::size_t segment_bytes() const noexcept { return segment_bytes_; }
    /// Room for what is given in a round, all segments together.
    std::size_t given_bytes() const noexcept { return ranks_ * segment_bytes_; }

    std::span<std::byte> given(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        return half(stage, round).first(given_bytes());
    }
    std::span<std::byte> given(std::span<std::byte> stage, std::uint64_t round, int block) const noexcept {
        return half(stage, round).subspan(static_cast<std::size_t>(block) * segment_bytes_, segment_bytes_);
    }
    std::span<std::byte> reduced(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        return half(stage, round).last(segment_bytes_);
    }

private:
    std::span<std::byte> half(std::span<std::byte> stage, std::uint64_t round) const noexcept {
        const auto bytes = given_bytes() + segment_bytes_;
        return stage.subspan(round % 2 * bytes, bytes);
    }

    std::size_t ranks_;
    std::size_t segment_bytes_;
};

/// Private memory of an algorithm that stages.
inline std::size_t stage_scratch_bytes(int ranks) {
    return padded_array<std::span<const std::byte>>(static_cast<std::size_t>(ranks));
}

}  // namespace guozhuang::direct
