#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace guozhuang {

/// Elements of one parameter that this rank owns, as an update rule gets them.
template <class T>
struct Shard {
    std::size_t parameter = 0;     ///< its position in the constructor's list
    std::size_t first = 0;         ///< the first of the elements, counted within the parameter
    std::span<T> values;           ///< the rule changes these
    std::span<const T> gradients;  ///< averages over the ranks
    /// As many as the rule's moments(), each with a number for each element; 0 before the first
    /// step.
    std::span<const std::span<T>> state;
    std::uint64_t step = 1;  ///< how many batches, this one included
};

/// An update rule: a callable that takes a Shard<float>, and a Shard<double> if parameters are f64.
/// It must treat every element alike, and by itself: where shards begin depends on the number of
/// ranks. If it keeps state, `std::size_t moments() const` says how many numbers for each element.
template <class U>
concept ShardUpdate = std::invocable<U&, const Shard<float>&>;

/// Stochastic gradient descent: g = gradient + weight_decay * value; m = momentum * m + g; value -=
/// learning_rate * (nesterov ? g + momentum * m : m). Without momentum it keeps no state. All but
/// whether there is momentum may be changed between steps, alike on all ranks.
struct GUOZHUANG_API ShardedSgd {
    double learning_rate = 0.01;
    double momentum = 0;
    double weight_decay = 0;
    bool nesterov = false;

    std::size_t moments() const noexcept { return momentum != 0 ? 1 : 0; }
    void operator()(const Shard<float>& shard) const;
    void operator()(const Shard<double>& shard) const;
};

/// Adam (Kingma, Ba 2015), with the decay of weights that is apart from the gradient (AdamW:
/// Loshchilov, Hutter 2019). All may be changed between steps, alike on all ranks.
struct GUOZHUANG_API ShardedAdam {
    double learning_rate = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0;

    std::size_t moments() const noexcept { return 2; }
    void operator()(const Shard<float>& shard) const;
    void operator()(const Shard<double>& shard) const;
};

/// The same on all ranks of the process set.
struct ShardedOptimizerOptions {
    std::string name = {};  ///< as in OptimizerOptions
    /// As in OptimizerOptions; see shard_gradients.
    int backward_passes_per_step = 1;
    double gradient_scale = 1;  ///< every averaged gradient is multiplied by this
    /// Smaller parameters are packed into bundles of at most this size. A larger one travels alone,
    /// and without a copy.
    std::size_t bundle_bytes = 1u << 20;
    /// Stage 2. Every pass averages its gradients over the ranks, and a rank keeps the sum of the
    /// passes for its own share only. So the trainer clears its gradients (or gives their memory to
    /// other things) after every call of step(), not only after one that stepped. Costs a
    /// reduce-scatter in each pass. Without it gradients accumulate in the trainer's memory.
    bool shard_gradients = false;
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< as in Options
};

namespace detail {
/// An update rule that belongs to the caller. `f64` is empty if it takes no doubles.
struct ShardRule {
    std::function<std::size_t()> moments;
    std::function<void(const Shard<float>&)> f32;
    std::function<void(const Shard<double>&)> f64;
};

template <ShardUpdate U>
ShardRule shard_rule(U& update) {
    ShardRule rule{[] { return std::size_t{0}; }, std::ref(update), {}};
    if constexpr (requires { update.moments(); })
        rule.moments = [&update] { return update.moments(); };
    if constexpr (std::invocable<U&, const Shard<double>&>) rule.f64 = std::ref(update);
    return rule;
}
}  // namespace detail

/// Data-parallel training in which each rank keeps the optimizer's state for its share of the
/// elements only (ZeRO, stages 1 and 2: Rajbhandari, Rasley, Ruwase, He 2020). step() averages the
/// gradients, each rank those of its share (reduce-scatter), updates the values of that share, and
/// collects the values of all shares (all-gather). The elements of all parameters together are
/// divided evenly: of n elements on p ranks the first n % p ranks own one more.
///
/// Sums are in the order of a DistributedOptimizer that does the same update on all elements, and
/// the bits are the same, on one host, and anywhere with GUOZHUANG_REPRODUCIBLE=1
/// (docs/training/sharded_optimizer.md).
///
/// Construction is collective, and so are step() and discard(): every rank calls one of them for
/// each batch; all ranks use several optimizers in the same order. One thread at a time. A rank
/// that lacks memory in one of these ends the job with Error(out_of_memory).
class GUOZHUANG_API ShardedOptimizer {
public:
    /// The rule, and the memory of parameters, must outlive this. Parameters without a gradient are
    /// ignored. Ranks must begin with the same values (broadcast_parameters). Otherwise all go on
    /// with a mixture of their shares, which nothing finds.
    ///
    /// Throws Error: invalid_argument, on this rank alone, for an empty or duplicate name, no
    /// gradient at all, a value and gradient of different shapes or dtypes, a dtype that is not f32
    /// or f64 (f64 only if the rule takes it), tensors on a device or not contiguous, parameters
    /// that overlap (tied weights), and options out of range; mismatch on all ranks if parameters
    /// or options differ, with the name of the first that does; departed as step(); duplicate_name.
    template <ShardUpdate U>
    ShardedOptimizer(U& update, std::vector<Parameter> parameters,
                     const ShardedOptimizerOptions& options = {})
        : ShardedOptimizer(detail::shard_rule(update), std::move(parameters), options) {}
    ShardedOptimizer(detail::ShardRule rule, std::vector<Parameter> parameters,
                     const ShardedOptimizerOptions& options);
    /// Waits, for at most 10 s, for reductions that still read gradients: after an exception in
    /// backward that nobody has followed by discard().
    ~ShardedOptimizer();
    ShardedOptimizer(ShardedOptimizer&&) noexcept;

    /// Marks a parameter's gradient as final for this pass. A bundle whose gradients are all final
    /// is sent while backward still runs, so they must not change until step() returns. Throws
    /// Error(invalid_argument) for an unknown parameter, one without a gradient, or one marked
    /// twice; step() throws that again, after it has discarded the batch on all ranks.
    void mark(std::size_t parameter);  ///< by its position in the constructor's list
    void mark(std::string_view name);  ///< by its name
    /// A hook for backward that calls mark(). Optional: without it step() sends everything. Valid
    /// as long as this is not moved.
    auto on_gradient() & {
        return [this](const auto& parameter) {
            if constexpr (std::convertible_to<decltype(parameter), std::string_view>)
                mark(std::string_view(parameter));
            else
                mark(static_cast<std::size_t>(parameter));
        };
    }

    /// Ends a pass. Returns false if the batch needs more; otherwise updates all values and returns
    /// true. Gradients are only read. If hooks are in use, though, those that were not marked in
    /// any pass of the batch (with shard_gradients: in this pass) are set to zero, with one
    /// warning.
    ///
    /// Throws Error: discarded if another rank has called discard(); departed, with the ranks, if
    /// some have joined or left; what mark() has thrown; what ends the job. Then the batch is over
    /// on all ranks, and no rank has changed a value, except as follows. Throws
    /// Error(invalid_argument) if hooks are in use and it is called twice; this does not end the
    /// batch.
    ///
    /// If the rule throws, this throws the same, and on the other ranks Error(discarded) says why.
    /// All ranks then hold the same values, but this rank's share is updated only as far as the
    /// rule came: return to a checkpoint. If a rank dies or leaves while values are collected, the
    /// values may also differ between the ranks.
    bool step();

    /// For a rank that cannot go on with this batch: call it instead of the step() that ends the
    /// batch, in any pass of it. On the other ranks that step() throws Error(discarded), with this
    /// rank and the reason, and no rank steps. Takes part in the reductions of the batch, whatever
    /// the gradients hold, and returns when all ranks have ended it. The next backward begins a new
    /// batch. Throws what ends the job.
    void discard(std::string_view reason);

    /// The bytes of this rank's share of the state; the ranks' shares add up to the state of an
    /// optimizer that is not sharded. Local. (A rank also keeps the averaged gradients of its share
    /// while a batch is under way.)
    std::size_t state_bytes() const noexcept;

    /// This rank's share of the state, and where it belongs. Together with the shares of all ranks,
    /// in files or from all_gather_bytes(), and the parameters' values, which every rank has, this
    /// is a checkpoint. Local. Throws Error(invalid_argument) in the middle of a batch.
    std::string save() const;
    /// Restores the state from the shares that all ranks have saved, in any order. The number of
    /// ranks and bundle_bytes may have changed. Local, but all ranks must do it before the next
    /// step. Throws Error(invalid_argument) if a share is damaged, was saved on a machine with
    /// another byte order, or has another step than the others; or if shares that this rank needs
    /// are missing or do not fit, with the parameter's name. Then nothing is changed.
    void load(std::span<const std::string> shares);

    /// The name in the options, or the numbered one: the same on all ranks, unique on each.
    const std::string& name() const& noexcept;
    std::string name() && { return std::as_const(*this).name(); }

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
