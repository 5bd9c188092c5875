#pragma once

#include <cstdint>
#include <Eigen/Core>
#include <guozhuang/error.hpp>
#include <guozhuang/handle.hpp>
#include <guozhuang/tensor.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

/// Guozhuang for Eigen 3.4. Eigen vectors and matrices are tensors as they are (see
/// TensorView); these views add rows and columns, and Eigen's half and bfloat16.
namespace guozhuang::eigen {

/// The DType of an Eigen scalar type.
template <class Scalar>
constexpr DType dtype_of_scalar() {
    if constexpr (std::is_same_v<Scalar, Eigen::half>)
        return DType::f16;
    else if constexpr (std::is_same_v<Scalar, Eigen::bfloat16>)
        return DType::bf16;
    else
        return dtype_of<Scalar>;
}

namespace detail {

template <class Derived>
TensorView view_of(const Derived& matrix) {
    guozhuang::detail::require_dense(matrix);
    using Scalar = typename Derived::Scalar;
    Shape shape{matrix.outerSize(), matrix.innerSize()};
    if constexpr (Derived::IsVectorAtCompileTime) shape = {matrix.size()};
    return {const_cast<Scalar*>(matrix.data()), dtype_of_scalar<Scalar>(), std::move(shape)};
}

}  // namespace detail

/// A matrix, Map or Block as a tensor of two dimensions, without a copy; a vector as one of one
/// dimension. The first, by which all_gather and its like divide, is that of the rows if the matrix
/// is row-major, and else, as it lies in memory, that of the columns. Throws
/// Error(invalid_argument) for a part of a matrix whose elements do not lie side by side.
template <class Derived>
    requires(bool(Derived::Flags& Eigen::LvalueBit))
TensorView view(Eigen::DenseBase<Derived>& matrix) {
    return detail::view_of(matrix.derived());
}
/// The same of a part or a Map that ends with the expression: what it is a part of lives on.
template <class Derived>
    requires(bool(Derived::Flags& Eigen::LvalueBit))
TensorView view(Eigen::DenseBase<Derived>&& part) {
    return detail::view_of(part.derived());
}
/// The same of what is const, such as a Map of const elements: for operations that only read.
template <class Derived>
ConstTensorView view(const Eigen::DenseBase<Derived>& matrix) {
    return detail::view_of(matrix.derived());
}
/// A matrix that ends with the expression has no view.
template <class Derived>
void view(Eigen::PlainObjectBase<Derived>&&) = delete;

template <class Scalar>
using RowMajor = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A tensor as a row-major matrix, without a copy: the first dimension is that of the rows, all
/// others together are the columns. Throws Error(invalid_argument) if Scalar is not its dtype, if
/// it is on a GPU or not contiguous.
template <class Scalar>
Eigen::Map<RowMajor<Scalar>> matrix_of(const TensorView& tensor) {
    if (tensor.dtype != dtype_of_scalar<Scalar>() || tensor.device.kind == DeviceKind::cuda ||
        !tensor.strides.empty())
        throw Error(ErrorCode::invalid_argument,
                    "matrix_of: the tensor is " + std::string(name_of(tensor.dtype)) + " on " +
                        std::string(name_of(tensor.device.kind)) +
                        (tensor.strides.empty() ? "" : " with strides") + ", and a matrix is " +
                        std::string(name_of(dtype_of_scalar<Scalar>())) +
                        " in host memory without");
    const auto rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const auto columns = count_of(std::span(tensor.shape).subspan(tensor.shape.empty() ? 0 : 1));
    return {static_cast<Scalar*>(tensor.data), rows, static_cast<Eigen::Index>(columns)};
}

/// The same of a result, which keeps the elements: it must outlive the matrix.
template <class Scalar>
Eigen::Map<RowMajor<Scalar>> matrix_of(Result& result) {
    return matrix_of<Scalar>(result.view());
}

}  // namespace guozhuang::eigen
