#pragma once

#include <guozhuang/torch/reducer.hpp>
#include <string_view>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace guozhuang::torch {

/// Makes an optimizer of libtorch's a data-parallel one: backward sends the gradients of the
/// optimizer's parameters while it runs, and step() waits for their averages over the ranks, then
/// lets the optimizer step.
///
///     guozhuang::torch::DistributedOptimizer optimizer(sgd, *model);
///     ...
///     optimizer.zero_grad();
///     loss.backward();
///     optimizer.step();
///
/// `backward` may run once between two steps, unless the options or no_sync() say that gradients
/// accumulate. Optimizer and module must outlive this. All members are as those of
/// guozhuang::DistributedOptimizer; one thread at a time.
class DistributedOptimizer {
public:
    /// For the optimizer's parameters, which have their names in the module. Does not broadcast
    /// them: see broadcast_parameters(). Collective. Throws Error(invalid_argument), which names
    /// the parameter, for one that cannot be reduced, that is given twice, or that the module does
    /// not have; Error(mismatch) on all ranks if their parameters differ;
    /// Error(not_initialised).
    DistributedOptimizer(::torch::optim::Optimizer& optimizer, const ::torch::nn::Module& module,
                         const OptimizerOptions& options = {})
        : optimizer_(optimizer), reducer_(trained_parameters(module, optimizer), options) {}

    bool step() {
        return reducer_.finish_pass([this] { optimizer_.step(); });
    }
    void zero_grad() { optimizer_.zero_grad(); }
    void synchronize() { reducer_.synchronize(); }
    void discard(std::string_view reason) { reducer_.discard(reason); }
    [[nodiscard]] NoSync no_sync() noexcept { return NoSync(reducer_); }
    ::torch::optim::Optimizer& wrapped() noexcept { return optimizer_; }

private:
    ::torch::optim::Optimizer& optimizer_;
    Reducer reducer_;
};

}  // namespace guozhuang::torch
