#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/layout/chunks.hpp"
#include "collectives/staged/sections.hpp"

namespace guozhuang::staged {

/// Takes chunks 0, 1, ... through the rooms, in one round each. stage_out(chunk, round) writes this
/// rank's bytes of the chunk to its room and returns their number. copy_in(chunk, round) reads the
/// bytes of the others once all are there, before this rank stages out another chunk.
template <PeerMemory P, class StageOut, class CopyIn>
void staged_rounds(P& group, std::size_t chunks, const StageOut& stage_out, const CopyIn& copy_in) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const auto round = group.round();
        group.publish(stage_out(chunk, round));
        group.await(round);
        copy_in(chunk, round);
    }
}

/// A segment of contiguous memory.
template <class Byte>
std::span<Byte> slice(std::span<Byte> memory, const Segment& segment) noexcept {
    return memory.subspan(segment.offset, segment.bytes);
}

inline std::size_t copy(std::span<std::byte> into, std::span<const std::byte> from) noexcept {
    if (!from.empty()) std::memcpy(into.data(), from.data(), from.size());
    return from.size();
}

/// No rank returns before every rank has called it. Cost: one wait.
template <PeerMemory P>
void staged_barrier(P& group) {
    const auto round = group.round();
    group.publish(0);
    group.await(round);
}

}  // namespace guozhuang::staged
