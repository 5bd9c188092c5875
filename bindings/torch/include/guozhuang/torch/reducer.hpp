#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/torch/accumulation_hook.hpp>
#include <guozhuang/torch/agreement.hpp>
#include <guozhuang/torch/gradients.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <guozhuang/torch/sparse.hpp>
#include <guozhuang/training.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// The common part of DistributedOptimizer and DistributedDataParallel: reduces the gradients of
/// parameters while backward writes them. Gradients become views of one arena; one that backward
/// has made anew, after zero_grad(set_to_none) say, is copied there once.
///
/// A parameter that no rank has used keeps the gradient that it had, or none, as in a single
/// process; one that only other ranks have used counts as zero. So each rank tells the others which
/// it has used, in a tensor that is reduced with the last gradients. One thread at a time.
class Reducer {
public:
    /// For the parameters that `find` returns, which must be the same ones later. Backward calls
    /// `on_gradient` after each gradient of a pass that reduces. Collective.
    Reducer(std::function<std::vector<NamedParameter>()> find, const OptimizerOptions& options,
            std::function<void()> on_gradient = {})
        : options_(in_session(options)),
          find_(std::move(find)),
          on_gradient_(std::move(on_gradient)) {
        lay_out(same_parameters(ranks_of(options_), [this] { return reducible(); }));
        for (std::size_t i = 0; i < gradients_.size(); ++i)
            hooks_.emplace_back(gradients_[i].parameter.tensor, [this, i] { gradient_ready(i); });
    }
    Reducer(const Reducer&) = delete;
    Reducer& operator=(const Reducer&) = delete;

    /// Waits until all gradients hold their averages. Throws what GradientReducer::synchronize()
    /// throws; Error(invalid_argument) if backward has written none since the last step; and
    /// Error(invalid_argument), which ends the batch on all ranks, if other parameters require a
    /// gradient than at first, or if gradients were not cleared that cannot be reduced twice.
    void synchronize() {
        synchronize([this] { return reducer_->synchronize(), true; });
    }
    /// The same for at most `limit`, besides what it takes to gather the rows of sparse gradients;
    /// false if not all averages are there by then.
    bool synchronize_for(std::chrono::microseconds limit) {
        return synchronize([&] { return reducer_->synchronize_for(limit); });
    }
    /// Sends all that synchronize() waits for, but for the rows of sparse gradients, which it only
    /// gathers once it knows who has any. Does not wait. Throws as synchronize().
    void close() {
        if (passes_ + 1 == options_.backward_passes_per_step && !synchronised_)
            reduce([this] { return reducer_->synchronize_for({}); });
    }

    /// As GradientReducer::finish_pass().
    bool finish_pass(const std::function<void()>& step = {}) {
        follow_stream();
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

    const OptimizerOptions& options() const& noexcept { return options_; }
    /// Names an operation of this reducer alike on all ranks, in whatever order they use their
    /// reducers.
    std::string name_of(const std::string& operation) const {
        return operation + " of " + reducer_->name();
    }
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
        at::Tensor view;          ///< undefined: the gradient is sparse
        ReducedGradient reduced;  ///< by the last reduction
    };

    /// Backward runs on threads that have no session of their own.
    static OptimizerOptions in_session(OptimizerOptions options) {
        if (!options.process_set.state() && options.session == nullptr)
            options.session = &Session::current();
        return options;
    }

    std::vector<NamedParameter> reducible() const {
        const bool adds = options_.op == ReduceOp::average || options_.op == ReduceOp::sum;
        const auto op = "'" + std::string(guozhuang::name_of(options_.op)) + "'";
        if (!adds && options_.op != ReduceOp::adasum)
            throw Error(ErrorCode::invalid_argument,
                        "gradients are combined by average, sum or adasum, not by " + op);
        auto parameters = find_();
        for (const auto& each : parameters)
            if (each.has_sparse_gradient && !adds)
                detail::refuse(each.name,
                               "has a sparse gradient, of which there are averages and "
                               "sums, but no " +
                                   op);
        return parameters;
    }

    void lay_out(const std::vector<NamedParameter>& parameters) {
        used_.resize(parameters.size());
        GradientMemory memory(parameters, options_);
        // In f32, in which no gradient_scale makes a flag zero.
        const auto like = parameters.front().tensor.options().dtype(at::kFloat);
        used_anywhere_ = memory.zeros({std::ssize(parameters)}, {1}, like);
        const auto used = view_of(used_anywhere_, used_name);
        std::vector<Parameter> reduced{{used_name, {nullptr, used.dtype, used.shape}, used}};
        for (const auto& parameter : parameters) {
            const auto& [name, tensor, is_sparse] = parameter;
            gradients_.push_back({parameter, {}, {}});
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
        is_closed_ = synchronised_ = false;
    }

    void gradient_ready(std::size_t i) {
        auto& [parameter, view, reduced] = gradients_[i];
        if (!parameter.tensor.grad().defined()) return;
        const bool is_new_batch = std::exchange(synchronised_, false);
        used_[i] = 1;
        reduced.note_addition(parameter.tensor.grad());
        if (view.defined()) {
            attach(parameter.tensor, view);
            follow_stream();
            reducer_->mark(parameter.name);  // throws if step() was left out
        }
        if (is_new_batch) {
            begin_batch();
            used_[i] = 1;
        }
        if (on_gradient_ && !is_paused()) on_gradient_();
    }

    /// Moves the reducer to PyTorch's current stream, unless the options name a stream.
    void follow_stream() {
        if (options_.stream) return;
        if (const auto stream = detail::stream_of({}, used_anywhere_))
            reducer_->set_stream(*stream);
    }

    /// `wait()` waits for the reducer, and returns whether all of it has ended.
    template <class Wait>
    bool synchronize(const Wait& wait) {
        if (synchronised_) return true;
        if (!reduce(wait)) return false;
        synchronised_ = true;
        end_unless([&] { take_over(); });
        return true;
    }

    template <class Wait>
    bool reduce(const Wait& wait) {
        if (std::ranges::count(used_, 0.0F) == std::ssize(used_)) refuse_second_step();
        if (!is_closed_) end_unless([&] { complete(); });
        is_closed_ = true;
        follow_stream();
        try {
            return wait();
        } catch (...) {
            begin_batch();
            throw;
        }
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
            discard(detail::text_of(error));
            throw;
        }
    }

    /// Completes the bundles with the gradients of parameters that this rank has not used.
    void complete() {
        require_unchanged(find_());
        require_cleared();
        const at::NoGradGuard no_graph;
        used_anywhere_.copy_(at::tensor(used_));
        follow_stream();
        reducer_->mark(used_name);
        for (std::size_t i = 0; i < gradients_.size(); ++i) {
            const auto& [parameter, view, reduced] = gradients_[i];
            if (used_[i] != 0 || !view.defined()) continue;
            if (parameter.tensor.grad().defined())
                attach(parameter.tensor, view);
            else
                view.zero_();
            reducer_->mark(parameter.name);
        }
    }

    /// Refuses gradients that were reduced and would be again, with what backward has added.
    void require_cleared() const {
        for (const auto& [parameter, view, reduced] : gradients_)
            if (reduced.is_left(parameter.tensor.grad()))
                detail::refuse(parameter.name,
                               "still has the gradient that the last step reduced, which only a "
                               "plain average may keep: call zero_grad() after each step");
    }

    /// Refuses parameters that have begun to require a gradient, or do so no longer.
    void require_unchanged(const std::vector<NamedParameter>& parameters) const {
        const auto is_same = [](const NamedParameter& one, const Gradient& other) {
            return one.tensor.is_same(other.parameter.tensor);
        };
        const auto [now, before] = std::ranges::mismatch(parameters, gradients_, is_same);
        const std::string remedy =
            " after its module or optimizer was made a distributed one: make that anew on all "
            "ranks";
        if (before != gradients_.end() &&
            std::none_of(now, parameters.end(),
                         [&](const auto& each) { return is_same(each, *before); }))
            detail::refuse(before->parameter.name,
                           "was removed, or has ceased to require a gradient," + remedy);
        if (now != parameters.end())
            detail::refuse(now->name, "was added, or has begun to require a gradient," + remedy);
    }

    /// Gives this rank the gradients that only other ranks have written, and the sparse ones.
    void take_over() {
        compare_sparse();
        const bool all_used = std::ranges::count(used_, 1.0F) == std::ssize(used_);
        const auto anywhere =
            all_used ? at::tensor(used_) : used_anywhere_.to(at::kCPU, at::kFloat);
        for (std::size_t i = 0; i < gradients_.size(); ++i) {
            auto& [parameter, view, reduced] = gradients_[i];
            if (anywhere.data_ptr<float>()[i] == 0) continue;
            if (!view.defined())
                detail::gather_gradient(parameter, options_,
                                        name_of("sparse gradient of " + parameter.name));
            else if (used_[i] == 0)
                parameter.tensor.mutable_grad() = view;
            if (!may_stay()) reduced = ReducedGradient(parameter.tensor.grad());
        }
    }

    /// The GradientReducer compares the values of parameters before the first step, but for those
    /// of which it has no gradient.
    void compare_sparse() {
        if (!std::exchange(compares_sparse_, false)) return;
        std::vector<Parameter> values;
        for (const auto& [parameter, view, reduced] : gradients_)
            if (!view.defined())
                values.push_back(
                    {parameter.name, detail::memory_of(parameter.tensor, parameter.name), {}});
        const auto stream = detail::stream_of(options_.stream, used_anywhere_);
        if (!values.empty()) check_consistent(values, ranks_of(options_), stream);
    }

    /// Whether a gradient that was reduced may be reduced again with the next one.
    bool may_stay() const {
        return options_.op == ReduceOp::average && options_.gradient_scale == 1;
    }

    OptimizerOptions options_;
    std::function<std::vector<NamedParameter>()> find_;
    std::function<void()> on_gradient_;
    std::vector<float> used_;   ///< of each parameter, whether this rank has used it in this batch
    at::Tensor used_anywhere_;  ///< after synchronize(), not 0 if some rank has
    std::vector<Gradient> gradients_;
    std::optional<GradientReducer> reducer_;
    int passes_ = 0;  ///< of this batch, that only accumulate
    int paused_ = 0;
    bool is_closed_ = false;  ///< all that synchronize() waits for is on its way
    bool synchronised_ = false;
    bool compares_sparse_ = options_.check_values;
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
