#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nccl.h>

namespace guozhuang::emulated_nccl {

inline constexpr std::size_t most_ranks = 8;

/// Bytes in flight from one rank to another, in order.
struct Pipe {
    static constexpr std::size_t room = 64 << 10;
    std::atomic<std::uint64_t> written, read;
    std::array<std::byte, room> bytes;
};

/// Memory that the ranks of a communicator share. All zeros at first.
struct Segment {
    struct OfRank {
        std::atomic<bool> is_here, has_finalized;
        int pci_bus;  ///< of its GPU; another rank may have another MIG slice of it
        std::uint64_t host;
    };
    std::array<OfRank, most_ranks> of_ranks;
    std::array<std::array<Pipe, most_ranks>, most_ranks> pipes;  ///< from, to
};

/// Makes a segment, which others open by the id as long as this process lives.
ncclUniqueId make_segment();
/// Throws Refusal for an unknown id.
std::shared_ptr<Segment> open_segment(const ncclUniqueId& id);

}  // namespace guozhuang::emulated_nccl
