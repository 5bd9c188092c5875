#pragma once

#include <guozhuang/torch/tensors.hpp>
#include <memory>
#include <string>
#include <torch/types.h>
#include <torch/utils.h>

namespace guozhuang::torch::detail {

/// A tensor on its way between ranks that may have laid it out each in its own way: its elements
/// in the order of its dimensions, a complex one as two real ones. They are the tensor's own where
/// it has them so, else copies.
class PlainTensor {
public:
    /// Throws Error(invalid_argument) if the tensor is sparse, has gaps, or is of a type or on a
    /// device that the library does not know.
    PlainTensor(const at::Tensor& tensor, const std::string& name)
        : tensor_(tensor), plain_(plain(tensor, name)), view_(view_of(real(plain_), name)) {}

    const TensorView& view() const& noexcept { return view_; }
    TensorView view() && noexcept { return std::move(view_); }
    /// For Options::keep_alive.
    std::shared_ptr<void> owner() const { return std::make_shared<at::Tensor>(plain_); }
    /// Gives the tensor what an operation has written.
    void write_back() {
        const at::NoGradGuard no_graph;
        if (!plain_.is_same(tensor_)) tensor_.copy_(plain_);
    }

private:
    static at::Tensor plain(const at::Tensor& tensor, const std::string& name) {
        require_dense(tensor, name);
        if (tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj()) return tensor;
        const at::NoGradGuard no_graph;
        return at::empty(tensor.sizes(), tensor.options().requires_grad(false)).copy_(tensor);
    }
    static at::Tensor real(const at::Tensor& tensor) {
        return tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor;
    }

    at::Tensor tensor_, plain_;
    TensorView view_;
};

}  // namespace guozhuang::torch::detail
