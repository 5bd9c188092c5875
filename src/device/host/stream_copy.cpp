#include "device/host/stream_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Compiled once per target, as kernels.cpp is.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/host/stream_copy.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace guozhuang::device {
namespace HWY_NAMESPACE {

/// Copies whole cache lines; `into` is at the beginning of one.
void stream_lines(std::byte* into, const std::byte* from, std::size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
    std::memcpy(into, from, bytes);
#else
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::CappedTag<std::uint8_t, 64> lanes;
    const auto* const source = reinterpret_cast<const std::uint8_t*>(from);
    auto* const target = reinterpret_cast<std::uint8_t*>(into);
    for (std::size_t at = 0; at < bytes; at += hn::Lanes(lanes))
        hn::Stream(hn::LoadU(lanes, source + at), lanes, target + at);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace guozhuang::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace guozhuang::device {

HWY_EXPORT(stream_lines);

void stream_copy(std::span<std::byte> into, std::span<const std::byte> from) noexcept {
    constexpr std::size_t line_bytes = 64;
    const auto misaligned = reinterpret_cast<std::uintptr_t>(into.data()) % line_bytes;
    const auto head = std::min(misaligned == 0 ? 0 : line_bytes - misaligned, from.size());
    const auto tail = (from.size() - head) % line_bytes;
    const auto lines = from.size() - head - tail;
    if (head > 0) std::memcpy(into.data(), from.data(), head);
    if (lines > 0)
        HWY_DYNAMIC_DISPATCH(stream_lines)(into.data() + head, from.data() + head, lines);
    if (tail > 0) std::memcpy(into.data() + head + lines, from.data() + head + lines, tail);
}

void fence_streamed() noexcept {
    hwy::FlushStream();
}

}  // namespace guozhuang::device
#endif
