#pragma once

#include <guozhuang/operations.hpp>
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
    /// With a closure, for optimizers that need one (L-BFGS): it clears the gradients, runs
    /// backward and returns the loss, and each of its evaluations is reduced. The optimizer gets
    /// the mean of the ranks' losses, so that all decide alike; so does the caller. Every rank
    /// calls this.
    at::Tensor step(const ::torch::optim::Optimizer::LossClosure& closure) {
        return optimizer_.step([&] {
            auto loss = closure().detach().clone();
            reducer_.finish_pass();
            const auto& options = reducer_.options();
            allreduce(view_of(loss, "loss"), {.op = ReduceOp::average,
                                              .stream = options.stream,
                                              .session = options.session,
                                              .process_set = options.process_set});
            return loss;
        });
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
