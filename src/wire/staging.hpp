#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace guozhuang::wire {

/// Memory in which the ranks of one host stage what they give each other: a stage of each rank, and how many rounds each has ended. A view.
/// See PeerMemory in collectives/peer_memory.hpp for who may write what, and when.
struct Staging {
    struct alignas(64) Progress {
        std::atomic<std::uint64_t> rounds{0};
    };
    std::span<Progress> progress;  ///< by position among the ranks
    std::span<std::byte> stages;   ///< one after another, all of one size

    bool empty() const noexcept { return stages.empty(); }
    std::span<std::byte> stage(int position) const noexcept {
        const auto bytes = stages.size() / progress.size();
        return stages.subspan(static_cast<std::size_t>(position) * bytes, bytes);
    }
};

}  // namespace guozhuang::wire
