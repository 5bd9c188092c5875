#pragma once

#include <cstddef>
#include <span>

namespace guozhuang::device {

/// Copies with stores that go to memory past this core's caches (non-temporal ones): for what a
/// core reads next that shares no cache with this one, and would have to fetch each line out of
/// this one's. Where the processor has none, a plain copy. Other threads see the bytes in order
/// only after fence_streamed().
void stream_copy(std::span<std::byte> into, std::span<const std::byte> from) noexcept;

/// What this thread has streamed is visible to whoever sees what it stores from here on.
void fence_streamed() noexcept;

}  // namespace guozhuang::device
