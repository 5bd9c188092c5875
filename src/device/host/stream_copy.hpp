#pragma once

#include <cstddef>
#include <span>

namespace guozhuang::device {

/// Copies with non-temporal stores, past this core's caches, if the processor has them. For data
/// that a core with its own caches reads next: otherwise it would have to fetch each line from the
/// caches of this core. Other threads see the bytes in order only after fence_streamed().
void stream_copy(std::span<std::byte> into, std::span<const std::byte> from) noexcept;

/// A thread that sees a later store of this thread also sees what this thread has streamed.
void fence_streamed() noexcept;

}  // namespace guozhuang::device
