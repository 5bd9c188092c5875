#pragma once

#include <cstddef>
#include <span>

namespace guozhuang::device {

/// Copies with non-temporal stores, past this core's caches, where the processor has them. For data
/// that a core with caches of its own reads next: it would have to fetch each line from this one's.
/// Other threads see the bytes in order only after fence_streamed().
void stream_copy(std::span<std::byte> into, std::span<const std::byte> from) noexcept;

/// A thread that sees what this thread stores from here on also sees what it has streamed.
void fence_streamed() noexcept;

}  // namespace guozhuang::device
