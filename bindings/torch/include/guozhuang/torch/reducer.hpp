#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/torch/accumulation_hook.hpp>
#include <guozhuang/torch/gradients.hpp>
#include <guozhuang/torch/sparse.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// What DistributedOptimizer and DistributedDataParallel have in common: reduces the gradients of
/// parameters while backward writes them. Gradients become views of one arena; one that backward
/// has made anew, after zero_grad(set_to_none) say, is copied there once.
///
/// A parameter that no rank has used keeps the gradient that it had, or none, as in a single
/// process; one that only other ranks have used counts as zero. So each rank tells the others which
/// it has used, in a tensor that travels with the last bundle. One thread at a time.
class Reducer {
public:
    /// Collective. Backward calls `on_gradient` after each gradient of a pass that reduces.
    Reducer(const std::vector<NamedParameter>& parameters, const OptimizerOptions& options,
            std::function<void()> on_gradient = {})
        : options_(checked(parameters, options)),
          on_gradient_(std::move(on_gradient)),
          used_(parameters.size()) {
        lay_out(parameters);
        for (std::size_t i = 0; i < gradients_.size(); ++i)
            hooks_.emplace_back(parameters[i].tensor, [this, i] { gradient_ready(i); });
    }
    Reducer(const Reducer&) = delete;
    Reducer& operator=(const Reducer&) = delete;

    /// Waits until all gradients hold their averages. Throws what GradientReducer::synchronize()
    /// throws, and Error(invalid_argument) if backward has written none since the last step.
    void synchronize() {
        if (synchronised_) return;
        if (std::ranges::count(used_, 0.0F) == std::ssize(used_)) refuse_second_step();
        end_unless([&] { complete(); });
        try {
            reducer_->synchronize();
        } catch (...) {
            begin_batch();
            throw;
        }
        synchronised_ = true;
        end_unless([&] { take_over(); });
    }

    /// As GradientReducer::finish_pass().
    bool finish_pass(const std::function<void()>& step = {}) {
        if (passes_ + 1 < options_.backward_passes_per_step) {
            ++passes_;
            return reducer_->finish_pass();
        }
        synchronize();
        reducer_->finish_pass(step);
        begin_batch();
        return true;
    }

    /// As GradientReducer::discard().
    void discard(std::string_view reason) {
        begin_batch();
        reducer_->discard(reason);
    }

    const OptimizerOptions& options() const noexcept { return options_; }
    bool is_paused() const noexcept { return paused_ > 0; }
    void pause() noexcept {
        ++paused_;
        reducer_->pause();
    }
    void resume() noexcept {
        --paused_;
        reducer_->resume();
    }

private:
    static constexpr const char* used_name = "used parameters";

    struct Gradient {
        NamedParameter parameter;
        at::Tensor view;  ///< undefined: the gradient is sparse
    };

    static OptimizerOptions checked(const std::vector<NamedParameter>& parameters,
                                    const OptimizerOptions& options) {
        const bool adds = options.op == ReduceOp::average || options.op == ReduceOp::sum;
        const auto op = "'" + std::string(name_of(options.op)) + "'";
        if (!adds && options.op != ReduceOp::adasum)
            throw Error(ErrorCode::invalid_argument,
                        "gradients are combined by average, sum or adasum, not by " + op);
        for (const auto& each : parameters)
            if (each.has_sparse_gradient && !adds)
                detail::refuse(each.name,
                               "has a sparse gradient, of which there are averages and "
                               "sums, but no " +
                                   op);
        require_same(parameters, ranks_of(options));
        auto resolved = options;  // backward runs on threads that have no session of their own
        if (!resolved.process_set.state() && resolved.session == nullptr)
            resolved.session = &Session::current();
        return resolved;
    }

    void lay_out(const std::vector<NamedParameter>& parameters) {
        GradientMemory memory(parameters, options_);
        const auto like = parameters.front().tensor.options();
        used_anywhere_ = memory.zeros({std::ssize(parameters)}, {1}, like);
        const auto used = view_of(used_anywhere_, used_name);
        std::vector<Parameter> reduced{{used_name, {nullptr, used.dtype, used.shape}, used}};
        for (const auto& parameter : parameters) {
            const auto& [name, tensor, is_sparse] = parameter;
            gradients_.push_back({parameter, {}});
            if (is_sparse) continue;
            auto& view = gradients_.back().view;
            view = memory.zeros(tensor.sizes(), tensor.strides(), tensor.options());
            reduced.push_back(
                {name, detail::memory_of(tensor, name), detail::memory_of(view, name)});
        }
        reducer_.emplace(std::move(reduced), options_);
    }

    void begin_batch() {
        std::ranges::fill(used_, 0.0F);
        passes_ = 0;
        synchronised_ = false;
    }

    void gradient_ready(std::size_t i) {
        const auto& [parameter, view] = gradients_[i];
        if (!parameter.tensor.grad().defined()) return;
        const bool is_new_batch = std::exchange(synchronised_, false);
        used_[i] = 1;
        if (view.defined()) {
            attach(parameter.tensor, view);
            reducer_->mark(parameter.name);  // throws if step() was left out
        }
        if (is_new_batch) {
            begin_batch();
            used_[i] = 1;
        }
        if (on_gradient_ && !is_paused()) on_gradient_();
    }

    [[noreturn]] static void refuse_second_step() {
        throw Error(ErrorCode::invalid_argument,
                    "step() was called, but backward has written no gradient since the last one: "
                    "was it called twice? (A batch without gradients is ended by discard().)",
                    {.operation = "step"});
    }

    /// The batch ends, on all ranks, if `act` throws.
    template <class Act>
    void end_unless(const Act& act) {
        try {
            act();
        } catch (const std::exception& error) {
            discard(error.what());
            throw;
        }
    }

    /// Completes the bundles with the gradients of parameters that this rank has not used.
    void complete() {
        const at::NoGradGuard no_graph;
        used_anywhere_.copy_(at::tensor(used_));
        reducer_->mark(used_name);
        for (std::size_t i = 0; i < gradients_.size(); ++i) {
            const auto& [parameter, view] = gradients_[i];
            if (used_[i] != 0 || !view.defined()) continue;
            if (parameter.tensor.grad().defined())
                attach(parameter.tensor, view);
            else
                view.zero_();
            reducer_->mark(parameter.name);
        }
    }

    /// Gives this rank the gradients that only other ranks have written, and the sparse ones.
    void take_over() {
        const bool any_sparse =
            std::ranges::any_of(gradients_, [](const auto& each) { return !each.view.defined(); });
        if (std::ranges::count(used_, 1.0F) == std::ssize(used_) && !any_sparse) return;
        const auto anywhere = used_anywhere_.to(at::kCPU, at::kFloat);
        for (std::size_t i = 0; i < gradients_.size(); ++i) {
            const auto& [parameter, view] = gradients_[i];
            if (anywhere.data_ptr<float>()[i] == 0) continue;
            if (!view.defined())
                detail::gather_gradient(parameter, options_);
            else if (used_[i] == 0)
                parameter.tensor.mutable_grad() = view;
        }
    }

    OptimizerOptions options_;
    std::function<void()> on_gradient_;
    std::vector<float> used_;   ///< of each parameter, whether this rank has used it in this batch
    at::Tensor used_anywhere_;  ///< after synchronize(), not 0 if some rank has
    std::vector<Gradient> gradients_;
    std::optional<GradientReducer> reducer_;
    int passes_ = 0;  ///< of this batch, that only accumulate
    int paused_ = 0;
    bool synchronised_ = false;
    std::deque<AccumulationHook> hooks_;
};

/// While it lives, gradients only accumulate.
class NoSync {
public:
    explicit NoSync(Reducer& reducer) noexcept : reducer_(reducer) { reducer_.pause(); }
    ~NoSync() { reducer_.resume(); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

private:
    Reducer& reducer_;
};

}  // namespace guozhuang::torch
