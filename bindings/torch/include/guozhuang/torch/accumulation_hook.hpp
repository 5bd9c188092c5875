#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <utility>

namespace guozhuang::torch {

/// Calls `ready` whenever backward has added to the gradient of a parameter, on the thread that has
/// done so: the one that called backward(), or autograd's for the GPU of the parameter. It hangs on
/// the node that accumulates the gradient, where any number of hooks can. (The hook of libtorch 2
/// that a tensor itself has is a single one, and Python's.)
class AccumulationHook {
public:
    AccumulationHook(const at::Tensor& parameter, std::function<void()> ready)
        : accumulator_(::torch::autograd::impl::grad_accumulator(parameter)),
          key_(accumulator_->add_post_hook(std::make_unique<Hook>(std::move(ready)))) {}
    ~AccumulationHook() { accumulator_->del_post_hook(key_); }
    AccumulationHook(const AccumulationHook&) = delete;
    AccumulationHook& operator=(const AccumulationHook&) = delete;

private:
    using Tensors = ::torch::autograd::variable_list;

    struct Hook final : ::torch::autograd::FunctionPostHook {
        explicit Hook(std::function<void()> action) : ready(std::move(action)) {}
        Tensors operator()(const Tensors& outputs, const Tensors&) override {
            ready();
            return outputs;
        }
        std::function<void()> ready;
    };

    /// The node, to which parameters refer weakly; the pointer's type is not that of all versions.
    decltype(::torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator_;
    std::uintptr_t key_;
};

}  // namespace guozhuang::torch
