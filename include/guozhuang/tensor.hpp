#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/shape.hpp>
#include <guozhuang/types.hpp>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace guozhuang {

/// Where memory lives.
enum class DeviceKind : std::uint8_t { host = 0, cuda = 1 };
constexpr DeviceKind last_of(DeviceKind) noexcept {
    return DeviceKind::cuda;
}

/// "host", "cuda".
GUOZHUANG_API std::string_view name_of(DeviceKind kind) noexcept;

/// One memory that the process can use.
struct Device {
    DeviceKind kind = DeviceKind::host;
    int index = 0;  ///< among devices of the kind, as the driver counts them
    friend bool operator==(const Device&, const Device&) = default;
};

namespace detail {
/// The type that data() of a range points to.
template <class R>
using Pointee = std::remove_pointer_t<decltype(std::ranges::data(std::declval<R>()))>;
/// Throws Error(invalid_argument) unless the shape has that many elements.
GUOZHUANG_API void require_elements(const Shape& shape, std::size_t elements);
/// Throws Error(invalid_argument).
[[noreturn]] GUOZHUANG_API void throw_not_dense();
/// Throws Error(invalid_argument) if `elements` is a part of an Eigen matrix (recognised by these
/// functions) whose elements are not contiguous.
template <class R>
void require_dense(const R& elements) {
    if constexpr (requires {
                      elements.outerStride() == elements.innerSize() * elements.innerStride();
                  }) {
        const bool dense =
            elements.innerStride() == 1 &&
            (elements.outerSize() == 1 || elements.outerStride() == elements.innerSize());
        if (elements.size() > 1 && !dense) throw_not_dense();
    }
}
}  // namespace detail

/// A range of elements with data() and size() that outlive the expression: a std::vector,
/// std::array, C array, Eigen vector or matrix, or tensor class of yours, as a variable; or a
/// std::span.
template <class R>
concept ElementRange =
    Element<detail::Pointee<R>> && requires(R&& elements) { std::ranges::size(elements); };

/// One or more const elements.
template <class T>
concept ConstElements =
    (std::is_const_v<std::remove_reference_t<T>> && Element<std::remove_cvref_t<T>>) ||
    (std::is_const_v<detail::Pointee<T>> && Element<std::remove_const_t<detail::Pointee<T>>> &&
     requires(T&& elements) { std::ranges::size(elements); });

/// One or more numbers of a type without a DType.
template <class T>
concept NoElement = !ConstElements<T&> &&
                    ((std::is_arithmetic_v<T> && !Element<T>) ||
                     (std::ranges::range<T> &&
                      std::is_arithmetic_v<std::ranges::range_value_t<T>> && !ElementRange<T&>));

/// A view of a dense, row-major tensor that it does not own. The memory must outlive the operations
/// that take the view.
struct TensorView {
    void* data = nullptr;      ///< the first element; may be null if there are none
    DType dtype = DType::f32;  ///< of the elements
    Shape shape = {0};         ///< in elements
    /// Distance between neighbours in each dimension, in elements; empty: contiguous. Operations
    /// refuse a view that is not contiguous.
    std::vector<std::int64_t> strides = {};
    Device device = {};  ///< where `data` points

    TensorView() = default;  ///< without elements
    /// A view of contiguous memory.
    TensorView(void* memory, DType type, Shape extents, Device where = {})
        : data(memory), dtype(type), shape(std::move(extents)), device(where) {}

    /// A one-dimensional view of all elements, as they are stored now: if a vector grows, the view
    /// is stale. Throws Error(invalid_argument) for a part of an Eigen matrix whose elements are
    /// not contiguous.
    template <ElementRange R>
    // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
    TensorView(R&& elements)
        : data(std::ranges::data(elements)),
          dtype(dtype_of<detail::Pointee<R>>),
          shape{static_cast<std::int64_t>(std::ranges::size(elements))} {
        detail::require_dense(elements);
    }
    /// A view of the elements in that shape. Throws Error(invalid_argument) if their number
    /// differs.
    template <ElementRange R>
    TensorView(R&& elements, Shape extents) : TensorView(elements) {
        detail::require_elements(extents, count());
        shape = std::move(extents);
    }
    /// A view of as many contiguous elements as the shape has.
    template <Element T>
    TensorView(T* const& elements, Shape extents, Device where = {})  // a reference: no array
        : TensorView(elements, dtype_of<T>, std::move(extents), where) {}
    /// A 0-dimensional view of one value.
    template <Element T>
    TensorView(T& scalar)  // NOLINT(google-explicit-constructor)
        : data(&scalar), dtype(dtype_of<T>), shape{} {}
    /// Fails to compile, and says what to use instead.
    template <ConstElements T>
    TensorView(T&&) {  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
        static_assert(!ConstElements<T>,
                      "this memory is const, and the operation writes its result to it: give it "
                      "memory that is not const, a copy say "
                      "(all_gather, all_to_all, reduce_scatter and send, which only read, do take "
                      "const memory)");
    }
    /// Fails to compile, and says what to use instead.
    template <NoElement T>
    TensorView(T&) {  // NOLINT(google-explicit-constructor)
        static_assert(Element<T>,
                      "a tensor has elements of type bool, float, double, guozhuang::Half, "
                      "guozhuang::BFloat16, or an integer (std::int8_t to "
                      "std::int64_t, std::uint8_t to std::uint64_t, std::size_t), side by side in "
                      "memory: use std::uint8_t for characters, "
                      "double for long double, std::vector<std::uint8_t> instead of "
                      "std::vector<bool>, which has no elements in memory, and "
                      "a vector of its own for an expression that has not been evaluated");
    }
    /// Fails to compile, and says what to use instead.
    template <class T>
        requires(!Element<T>)
    TensorView(T* const&, const Shape&, Device = {}) {
        static_assert(Element<T>,
                      "a pointer to elements that an operation may write is one to bool, float, "
                      "double, guozhuang::Half, guozhuang::BFloat16, or an integer (std::int8_t to "
                      "std::int64_t, std::uint8_t to std::uint64_t, std::size_t), none of them "
                      "const: use std::uint8_t for characters; "
                      "a void* takes a DType before the shape");
    }

    std::size_t count() const noexcept { return count_of(shape); }  ///< elements
    /// How many bytes the elements take.
    std::size_t bytes() const noexcept { return count() * size_of(dtype); }
    /// The elements as bytes, if the tensor is contiguous.
    std::span<std::byte> memory() const noexcept {
        return {static_cast<std::byte*>(data), bytes()};
    }
};

/// A tensor that an operation only reads: a TensorView, whatever converts to one, or the same in
/// const memory.
class ConstTensorView {
public:
    template <class T>
        requires(std::convertible_to<T, TensorView> && !ConstElements<T>)
    // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
    ConstTensorView(T&& tensor) : tensor_(std::forward<T>(tensor)) {}
    template <ConstElements T>
    // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
    ConstTensorView(T&& elements) {
        if constexpr (Element<std::remove_cvref_t<T>>) {
            tensor_ = TensorView(const_cast<std::remove_cvref_t<T>&>(elements));
        } else {
            detail::require_dense(elements);
            using E = std::remove_const_t<detail::Pointee<T>>;
            tensor_ = TensorView(std::span(const_cast<E*>(std::ranges::data(elements)),
                                           static_cast<std::size_t>(std::ranges::size(elements))));
        }
    }
    /// A view of as many contiguous elements as the shape has.
    template <class T>
    ConstTensorView(const T* const& elements, Shape extents, Device where = {})
        : tensor_(const_cast<T*>(elements), std::move(extents), where) {}
    /// A view of the elements in that shape. Throws Error(invalid_argument) if their number
    /// differs.
    template <class T>
        requires(!std::is_pointer_v<std::remove_cvref_t<T>>)
    ConstTensorView(T&& elements, Shape extents) : ConstTensorView(std::forward<T>(elements)) {
        detail::require_elements(extents, tensor_.count());
        tensor_.shape = std::move(extents);
    }

    const TensorView& view() const& noexcept { return tensor_; }  ///< its memory is not written
    TensorView view() && noexcept { return std::move(tensor_); }

private:
    TensorView tensor_;
};

/// A trainable tensor: its value and the gradient that backward writes, both owned by the trainer.
struct Parameter {
    /// Identifies the parameter on every rank and in errors. Unique among the parameters that are
    /// trained together.
    std::string name;
    TensorView value;  ///< what the optimizer changes
    /// Has the value's shape, maybe another dtype. Empty (TensorView()): the parameter is not
    /// trained.
    TensorView gradient;

    bool has_gradient() const noexcept {
        return gradient.data != nullptr || gradient.count() != 0 || gradient.shape == value.shape;
    }
};

/// A value that must be the same on all ranks, besides those that the reduction itself needs: see
/// Plan::agree.
struct Agreement {
    std::string tensor = {};  ///< which tensor it is about; empty: the bundle
    /// The plural noun that errors use for the values compared: "values of
    /// backward_passes_per_step".
    std::string what;
    std::string value;  ///< compared; errors show it
    friend bool operator==(const Agreement&, const Agreement&) = default;
};

/// Parameters from a range of the trainer's own structs with fields `name`, `value` and `gradient`;
/// the latter two are spans, vectors or TensorViews. The result refers to their memory. Local; any
/// thread.
template <std::ranges::input_range R>
    requires requires(std::ranges::range_reference_t<R> tensor) {
        std::string(tensor.name);
        TensorView(tensor.value);
        TensorView(tensor.gradient);
    }
std::vector<Parameter> parameters_of(R&& tensors) {
    std::vector<Parameter> parameters;
    for (auto&& tensor : tensors)
        parameters.push_back(
            {std::string(tensor.name), TensorView(tensor.value), TensorView(tensor.gradient)});
    return parameters;
}

/// The same, with all values and gradients in memory of this device.
template <std::ranges::input_range R>
std::vector<Parameter> parameters_of(R&& tensors, Device device) {
    auto parameters = parameters_of(std::forward<R>(tensors));
    for (auto& [name, value, gradient] : parameters) value.device = gradient.device = device;
    return parameters;
}

}  // namespace guozhuang
