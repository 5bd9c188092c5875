#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/torch/accumulation_hook.hpp>
#include <guozhuang/torch/gradients.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <guozhuang/torch/sparse.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// The common part of DistributedOptimizer and DistributedDataParallel: maps the parameters of a
/// module to a GradientReducer, which it points to. Gradients become views of one arena; one that
/// backward has made anew, after zero_grad(set_to_none) say, is copied there once.
///
/// A parameter that no rank has used keeps the gradient that it had, or none, as in a single
/// process; one that only other ranks have used counts as zero. One thread at a time.
///
/// close(), synchronize() and finish_pass() also throw Error(invalid_argument), which ends the
/// batch on all ranks, if other parameters require a gradient than at first, or if gradients were
/// not cleared that cannot be reduced twice. synchronize_for() has no limit for the rows of sparse
/// gradients.
class Reducer {
public:
    /// For the parameters that `find` returns, which must be the same ones later. Backward calls
    /// `on_gradient` after each gradient of a pass that reduces. Collective.
    Reducer(std::function<std::vector<NamedParameter>()> find, const OptimizerOptions& options,
            std::function<void()> on_gradient = {})
        : options_(in_session(options)),
          find_(std::move(find)),
          on_gradient_(std::move(on_gradient)) {
        parameters_ = same_parameters(
            ranks_of(options_), [this] { return detail::require_sums(find_(), options_.op); });
        lay_out();
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            hooks_.emplace_back(parameters_[i].tensor, [this, i] { gradient_ready(i); });
    }
    Reducer(const Reducer&) = delete;
    Reducer& operator=(const Reducer&) = delete;

    GradientReducer& operator*() noexcept { return *reducer_; }
    GradientReducer* operator->() noexcept { return &*reducer_; }

    const OptimizerOptions& options() const& noexcept { return options_; }
    /// Names an operation of this reducer alike on all ranks, in whatever order they use their
    /// reducers.
    std::string name_of(const std::string& operation) const {
        return operation + " of " + reducer_->name();
    }

private:
    struct Gradient {
        at::Tensor view;          ///< undefined: the gradient is sparse
        ReducedGradient reduced;  ///< by the last reduction
    };

    /// Backward runs on threads that have no session of their own.
    static OptimizerOptions in_session(OptimizerOptions options) {
        if (!options.process_set.state() && options.session == nullptr)
            options.session = &Session::current();
        return options;
    }

    void lay_out() {
        GradientMemory memory(parameters_, options_);
        uses_ = memory.uses(std::ssize(parameters_));
        options_.uses = {uses_.data_ptr<float>(), parameters_.size()};
        std::vector<Parameter> reduced;
        for (const auto& [name, tensor, is_sparse] : parameters_) {
            auto& view = gradients_.emplace_back().view;
            reduced.push_back({name, detail::memory_of(tensor, name), {}});
            if (is_sparse) continue;
            view = memory.zeros(tensor.sizes(), tensor.strides(), tensor.options());
            reduced.back().gradient = detail::memory_of(view, name);
        }
        reducer_.emplace(std::move(reduced), options_,
                         BatchCalls{.stream =
                                        [this] {
                                            return detail::stream_of(options_.stream,
                                                                     parameters_.front().tensor);
                                        },
                                    .closing = [this] { fill_unused(); },
                                    .reduced = [this] { take_over(); }});
    }

    void gradient_ready(std::size_t i) {
        const auto& gradient = parameters_[i].tensor.grad();
        if (!gradient.defined()) return;
        auto& [view, reduced] = gradients_[i];
        reduced.note_addition(gradient);
        if (view.defined()) attach(parameters_[i].tensor, view);
        reducer_->mark(i);  // throws if step() was left out
        if (on_gradient_ && !reducer_->is_paused()) on_gradient_();
    }

    /// Refuses gradients that were reduced and would be again, with what backward has added.
    void fill_unused() {
        require_unchanged(parameters_, find_());
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const auto& [name, tensor, is_sparse] = parameters_[i];
            const auto& [view, reduced] = gradients_[i];
            if (reduced.is_left(tensor.grad()))
                detail::refuse(name,
                               "still has the gradient that the last step reduced, which only a "
                               "plain average may keep: call zero_grad() after each step");
            if (is_sparse || reducer_->is_used(i)) continue;
            if (tensor.grad().defined())
                attach(tensor, view);
            else
                view.zero_();
        }
    }

    /// Gives this rank the gradients that only other ranks have written, and the sparse ones.
    void take_over() {
        const bool may_stay = options_.op == ReduceOp::average && options_.gradient_scale == 1;
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            if (!reducer_->is_used(i)) continue;
            const auto& [name, tensor, is_sparse] = parameters_[i];
            if (is_sparse)
                detail::gather_gradient(parameters_[i], options_,
                                        name_of("sparse gradient of " + name));
            else
                tensor.mutable_grad() = gradients_[i].view;
            if (!may_stay) gradients_[i].reduced = ReducedGradient(tensor.grad());
        }
    }

    OptimizerOptions options_;
    std::function<std::vector<NamedParameter>()> find_;
    std::function<void()> on_gradient_;
    at::Tensor uses_;  ///< of each parameter; see OptimizerOptions::uses
    std::vector<NamedParameter> parameters_;
    std::vector<Gradient> gradients_;
    std::optional<GradientReducer> reducer_;
    std::deque<AccumulationHook> hooks_;
};

}  // namespace guozhuang::torch
