#pragma once

#include <chrono>
#include <guozhuang/operations.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <guozhuang/torch/reducer.hpp>
#include <guozhuang/torch/tensors.hpp>
#include <string_view>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <vector>

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
/// accumulate. Optimizer and module must outlive this. One thread at a time.
///
/// A function that takes a torch::optim::Optimizer& takes this, too. Learning rates that are set in
/// its param_groups(), as schedulers do, are those of the next step; so are rates that are set in
/// those of wrapped(). Set other options in wrapped().
class DistributedOptimizer : public ::torch::optim::Optimizer {
public:
    /// For the optimizer's parameters, which have their names in the module. Does not broadcast
    /// them: see broadcast_parameters(). Collective. Throws Error(invalid_argument) on all ranks,
    /// with the name of the parameter, if one rank has a parameter that cannot be reduced, that is
    /// given twice, or that the module does not have; Error(mismatch) on all ranks if their
    /// parameters differ; Error(not_initialised).
    DistributedOptimizer(::torch::optim::Optimizer& optimizer, const ::torch::nn::Module& module,
                         const OptimizerOptions& options = {})
        : Optimizer(optimizer.param_groups(), optimizer.defaults().clone()),
          optimizer_(optimizer),
          rates_(rates_of(optimizer)),
          reducer_([&optimizer, &module] { return trained_parameters(module, optimizer); },
                   options) {}

    /// Waits for the averages, then lets the optimizer step. In a pass that only accumulates, does
    /// nothing and returns false. Throws what guozhuang::DistributedOptimizer::step() throws;
    /// Error(invalid_argument) if backward has written no gradient since the last step; and, on the
    /// ranks where that is so (discarded on the others), if other parameters of the optimizer
    /// require a gradient than when this was made, or if the options ask for anything but the plain
    /// average and gradients were not cleared after the last step.
    bool step() {
        return reducer_->finish_pass([this] {
            match_rates();
            optimizer_.step();
        });
    }
    /// With a closure, for optimizers that need one (L-BFGS): it clears the gradients, runs
    /// backward and returns the loss, and each of its evaluations is reduced. The optimizer gets
    /// the mean of the ranks' losses, so that all decide alike; so does the caller. Every rank
    /// calls this. Throws as step(), and what the closure throws. A null closure: step(), and no
    /// loss.
    at::Tensor step(LossClosure closure) override {
        if (closure == nullptr) {
            step();
            return {};
        }
        match_rates();
        return optimizer_.step([&] {
            auto loss = closure().detach().clone();
            reducer_->finish_pass();
            const auto& options = reducer_.options();
            allreduce(view_of(loss, "loss"), {.op = ReduceOp::average,
                                              .stream = detail::stream_of(options.stream, loss),
                                              .session = options.session,
                                              .process_set = options.process_set});
            return loss;
        });
    }
    /// The optimizer's zero_grad(). Local.
    void zero_grad() { optimizer_.zero_grad(); }
    /// The optimizer's state, as torch::save() writes it and torch::load() reads it.
    void save(::torch::serialize::OutputArchive& archive) const override {
        optimizer_.save(archive);
    }
    void load(::torch::serialize::InputArchive& archive) override { optimizer_.load(archive); }

    /// Waits for the averages without stepping, to clip them say; the next step() then only steps.
    /// Throws as step().
    void synchronize() { reducer_->synchronize(); }
    /// The same for at most `limit`; false if not all averages are there by then: another call goes
    /// on. Rows of sparse gradients, which come last, are waited for without a limit.
    bool synchronize_for(std::chrono::microseconds limit) {
        return reducer_->synchronize_for(limit);
    }
    /// Instead of step(), on a rank that cannot go on with this batch: step() fails on all ranks,
    /// which all go on with the next. See GradientReducer::discard.
    void discard(std::string_view reason) { reducer_->discard(reason); }
    /// While the guard lives, gradients only accumulate, on this rank alone.
    [[nodiscard]] NoSync no_sync() & noexcept { return NoSync(*reducer_); }

    /// The optimizer of the constructor.
    ::torch::optim::Optimizer& wrapped() noexcept { return optimizer_; }

private:
    /// None of a user's optimizer whose options have no rate.
    static std::vector<double> rates_of(const Optimizer& optimizer) try {
        std::vector<double> rates;
        for (const auto& group : optimizer.param_groups())
            rates.push_back(group.options().get_lr());
        return rates;
    } catch (const c10::Error&) {
        return {};
    }
    /// Both get the rate that was changed since the last step, be it here or there.
    void match_rates() {
        auto &own = param_groups(), &theirs = optimizer_.param_groups();
        if (own.size() != theirs.size())
            throw Error(ErrorCode::invalid_argument,
                        "DistributedOptimizer: a group of parameters was added after the "
                        "optimizer was wrapped; add it before");
        for (std::size_t i = 0; i < rates_.size(); ++i) {
            const auto rate = own[i].options().get_lr();
            rates_[i] = rate != rates_[i] ? rate : theirs[i].options().get_lr();
            own[i].options().set_lr(rates_[i]);
            theirs[i].options().set_lr(rates_[i]);
        }
    }

    ::torch::optim::Optimizer& optimizer_;
    std::vector<double> rates_;  ///< by group, after the last step
    Reducer reducer_;
};

}  // namespace guozhuang::torch
