#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace guozhuang {

/// Where memory lives. `fake` is host memory that behaves like a device's: work on it is ordered by streams (see stream.hpp).
enum class DeviceKind : std::uint8_t { host, fake, cuda };

GUOZHUANG_API std::string_view name_of(DeviceKind kind) noexcept;

struct Device {
    DeviceKind kind = DeviceKind::host;
    int index = 0;
    friend bool operator==(const Device&, const Device&) = default;
};

/// Extents, outermost first; empty for a 0-dimensional tensor (one element).
using Shape = std::vector<std::int64_t>;

/// Elements of a shape: the product of its extents, 1 for a 0-dimensional one.
constexpr std::size_t count_of(std::span<const std::int64_t> shape) noexcept {
    std::size_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
}

/// A view of a dense, row-major tensor that somebody else owns. The memory must outlive the operations it is given to.
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::f32;
    Shape shape = {0};
    /// Distance between neighbours of each dimension in elements; empty for contiguous. Operations refuse a view that is not contiguous.
    std::vector<std::int64_t> strides = {};
    Device device = {};

    TensorView() = default;
    TensorView(void* memory, DType type, Shape extents, Device where = {})
        : data(memory), dtype(type), shape(std::move(extents)), device(where) {}

    /// One-dimensional view of a contiguous range.
    template <Element T>
    TensorView(std::span<T> elements)  // NOLINT(google-explicit-constructor): a span is a tensor
        : data(elements.data()), dtype(dtype_of<T>), shape{static_cast<std::int64_t>(elements.size())} {}
    template <Element T>
    TensorView(std::span<T> elements, Shape extents) : data(elements.data()), dtype(dtype_of<T>), shape(std::move(extents)) {}
    template <Element T>
    TensorView(std::vector<T>& elements)  // NOLINT(google-explicit-constructor)
        : TensorView(std::span<T>(elements)) {}
    /// 0-dimensional view of one value.
    template <Element T>
    TensorView(T& scalar)  // NOLINT(google-explicit-constructor)
        : data(&scalar), dtype(dtype_of<T>), shape{} {}

    std::size_t count() const noexcept { return count_of(shape); }
    std::size_t bytes() const noexcept { return count() * size_of(dtype); }
    std::span<std::byte> memory() const noexcept { return {static_cast<std::byte*>(data), bytes()}; }
};

/// A trainable tensor: its value and the gradient that backward writes, both owned by the trainer. The name identifies it on every rank.
struct Parameter {
    std::string name;
    TensorView value;
    TensorView gradient;
};

}  // namespace guozhuang
