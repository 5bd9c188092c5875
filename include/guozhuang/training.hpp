#pragma once

#include <cstddef>
#include <guozhuang/process_set.hpp>
#include <guozhuang/tensor.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Helpers around a training loop. All are collective unless they say otherwise: every rank of the
/// process set calls them, and those that are block until it has. By default that is every rank of
/// Session::current(); a Session* means all of its ranks. Any thread, but each of them from one
/// thread of a rank at a time. They throw Error(not_initialised) without a session, and what the
/// operations they consist of throw.
namespace guozhuang {

/// Copies the parameter values of root, a rank of the job, over everybody's, so that all ranks
/// start equal. Names must be the same on all ranks, in any order, else Error(mismatch) on all with
/// those that not all have, and nothing is copied. So must shapes and dtypes; after an error about
/// those the parameters that it does not name hold root's values. Throws Error(invalid_argument) if
/// two have one name.
GUOZHUANG_API void broadcast_parameters(std::span<const Parameter> parameters, int root = 0,
                                        const ProcessSet& process_set = {});

/// Copies root's byte string over everybody's. Nobody else needs to know what it holds, nor how
/// long it is.
GUOZHUANG_API void broadcast_bytes(std::string& bytes, int root = 0,
                                   const ProcessSet& process_set = {});

/// Every rank's byte string, by rank. Lengths may differ; nobody needs to know the others'.
GUOZHUANG_API std::vector<std::string> all_gather_bytes(std::string_view bytes,
                                                        const ProcessSet& process_set = {});

/// Collects what an optimizer keeps from step to step: its visit_state() calls this with a name for
/// each tensor and each scalar, in any order. It refers to the optimizer's own memory. Local.
class GUOZHUANG_API OptimizerState {
public:
    /// A tensor, or what converts to one: a vector, a span, a float ... Throws
    /// Error(invalid_argument) for a name that was used already.
    void operator()(std::string name, const TensorView& tensor);
    /// A number of a type that no tensor has, such as char, or an enumerator; it travels as bytes.
    template <class T>
        requires((std::is_arithmetic_v<T> || std::is_enum_v<T>) && !Element<T>)
    void operator()(std::string name, T& scalar) {
        (*this)(std::move(name),
                TensorView(&scalar, DType::u8, {static_cast<std::int64_t>(sizeof(T))}));
    }
    /// Collective: see broadcast_optimizer_state.
    void broadcast(int root, const ProcessSet& process_set) const;

private:
    std::map<std::string, TensorView> tensors_;
};

/// An optimizer that shows its state. It need not know this library:
///
///     template <class V>
///     void visit_state(V&& visit) {
///         visit("step", step_);
///         for (std::size_t i = 0; i < velocities_.size(); ++i)
///             visit("velocity/" + std::to_string(i), velocities_[i]);
///     }
template <class O>
concept StatefulOptimizer =
    requires(O& optimizer, OptimizerState& state) { optimizer.visit_state(state); };

/// Copies root's optimizer state over everybody's, after a resume say. Pass the wrapped optimizer,
/// not the DistributedOptimizer. Names, dtypes and shapes must be the same on all ranks, so tensors
/// that the first step makes must be there before; else Error(mismatch) on all, with what each side
/// has, and nothing is changed.
template <StatefulOptimizer O>
void broadcast_optimizer_state(O& optimizer, int root = 0, const ProcessSet& process_set = {}) {
    OptimizerState state;
    optimizer.visit_state(state);
    state.broadcast(root, process_set);
}

/// Throws Error(mismatch) on every rank, naming the first tensor whose bits differ and on which
/// ranks, unless all ranks hold the same values. Bits are compared by a 64-bit hash. Host memory
/// only.
GUOZHUANG_API void check_consistent(std::span<const Parameter> parameters,
                                    const ProcessSet& process_set = {});

/// The mean of each metric over the ranks. Every rank must pass the same keys, else Error(mismatch)
/// on all, with the keys that not all have.
GUOZHUANG_API std::map<std::string, double> average_metrics(
    const std::map<std::string, double>& metrics, const ProcessSet& process_set = {});

/// Scales the gradients so that their global 2-norm is at most `max_norm`; returns the norm before.
/// Local: call it after synchronize(), when all ranks hold the same gradients. f32 and f64 in host
/// memory only. Throws Error(invalid_argument) for a `max_norm` below 0 or NaN.
GUOZHUANG_API double clip_by_global_norm(std::span<const Parameter> parameters, double max_norm);

/// The linear scaling rule (Goyal et al. 2017): rate * size. Local.
GUOZHUANG_API double scale_learning_rate(double rate, const ProcessSet& process_set = {});

/// Steps until the ranks together have seen `samples` samples, `batch` per rank and step, rounded
/// up. Local. Throws Error(invalid_argument) for a batch of 0.
GUOZHUANG_API std::size_t steps_per_epoch(std::size_t samples, std::size_t batch,
                                          const ProcessSet& process_set = {});

/// Prints a line to standard output on the first rank. Local.
GUOZHUANG_API void print_once(std::string_view line, const ProcessSet& process_set = {});

}  // namespace guozhuang
