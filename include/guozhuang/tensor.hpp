#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace guozhuang {

/// Where memory lives. `fake` is host memory that behaves like a device's: work on it is ordered by streams (see stream.hpp).
enum class DeviceKind : std::uint8_t { host, fake, cuda };

/// "host", "fake", "cuda".
GUOZHUANG_API std::string_view name_of(DeviceKind kind) noexcept;

/// One memory of the process.
struct Device {
    DeviceKind kind = DeviceKind::host;
    int index = 0;  ///< among those of the kind, as its driver counts them
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
    void* data = nullptr;      ///< the first element; may be null where there are none
    DType dtype = DType::f32;  ///< of the elements
    Shape shape = {0};         ///< in elements
    /// Distance between neighbours of each dimension in elements; empty for contiguous. Operations refuse a view that is not contiguous.
    std::vector<std::int64_t> strides = {};
    Device device = {};  ///< where `data` points

    TensorView() = default;  ///< of no elements
    /// Of contiguous memory.
    TensorView(void* memory, DType type, Shape extents, Device where = {})
        : data(memory), dtype(type), shape(std::move(extents)), device(where) {}

    /// One-dimensional view of a contiguous range.
    template <Element T>
    TensorView(std::span<T> elements)  // NOLINT(google-explicit-constructor): a span is a tensor
        : data(elements.data()), dtype(dtype_of<T>), shape{static_cast<std::int64_t>(elements.size())} {}
    /// A contiguous range seen in that shape, which must have as many elements.
    template <Element T>
    TensorView(std::span<T> elements, Shape extents) : data(elements.data()), dtype(dtype_of<T>), shape(std::move(extents)) {}
    /// One-dimensional view of all elements, where they are now: a vector that grows leaves it behind.
    template <Element T>
    TensorView(std::vector<T>& elements)  // NOLINT(google-explicit-constructor)
        : TensorView(std::span<T>(elements)) {}
    /// 0-dimensional view of one value.
    template <Element T>
    TensorView(T& scalar)  // NOLINT(google-explicit-constructor)
        : data(&scalar), dtype(dtype_of<T>), shape{} {}

    std::size_t count() const noexcept { return count_of(shape); }           ///< elements
    std::size_t bytes() const noexcept { return count() * size_of(dtype); }  ///< that the elements take
    /// The elements as bytes; of a contiguous tensor only.
    std::span<std::byte> memory() const noexcept { return {static_cast<std::byte*>(data), bytes()}; }
};

/// A trainable tensor: its value and the gradient that backward writes, both owned by the trainer.
struct Parameter {
    std::string name;     ///< identifies it on every rank and in errors; unique among the parameters that are trained together
    TensorView value;     ///< what the optimizer changes
    TensorView gradient;  ///< of the same shape; its dtype may be another
};

/// Parameters, from a range of whatever a trainer keeps them in: anything with members `name`, `value` and `gradient`, of which the latter two are
/// spans, vectors or TensorViews. They refer to the same memory. Local; any thread.
template <std::ranges::input_range R>
    requires requires(std::ranges::range_reference_t<R> tensor) {
        std::string(tensor.name);
        TensorView(tensor.value);
        TensorView(tensor.gradient);
    }
std::vector<Parameter> parameters_of(R&& tensors) {
    std::vector<Parameter> parameters;
    for (auto&& tensor : tensors) parameters.push_back({std::string(tensor.name), TensorView(tensor.value), TensorView(tensor.gradient)});
    return parameters;
}

}  // namespace guozhuang
