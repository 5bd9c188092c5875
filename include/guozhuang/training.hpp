#pragma once

#include <cstddef>
#include <guozhuang/elements.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Helpers for training loops. Unless they say otherwise they are collective: every rank of the
/// process set calls them, and they block until all have. The default set is all ranks of
/// Session::current(); a Session* means all of its ranks. Any thread, but on a rank one thread at a
/// time for each function. They throw Error(not_initialised), and what the operations that they use
/// throw.
namespace guozhuang {

/// Copies root's parameter values to all ranks, so that all start with the same values. `root` is a
/// rank of the job. Names must be the same on all ranks, in any order; otherwise nothing is copied,
/// and all throw Error(mismatch) with the names that not all have. Shapes and dtypes must be the
/// same too; after such an error the other parameters hold root's values. Throws
/// Error(invalid_argument) if two parameters have the same name.
GUOZHUANG_API void broadcast_parameters(std::span<const Parameter> parameters, int root = 0,
                                        const ProcessSet& process_set = {});

/// Copies root's byte string to all ranks. The other ranks need not know its length.
GUOZHUANG_API void broadcast_bytes(std::string& bytes, int root = 0,
                                   const ProcessSet& process_set = {});

/// The byte string of every rank, by rank. Lengths may differ, and ranks need not know them.
GUOZHUANG_API std::vector<std::string> all_gather_bytes(std::string_view bytes,
                                                        const ProcessSet& process_set = {});

/// Collects the state that an optimizer keeps between steps: its visit_state() calls this with a
/// name and a tensor or scalar, in any order. Refers to the optimizer's memory. Local.
class GUOZHUANG_API OptimizerState {
public:
    /// A tensor, or what converts to one: a vector, a span, a float ... Throws
    /// Error(invalid_argument) for a name that was used already.
    void operator()(std::string name, const TensorView& tensor);
    /// A number of a type without a DType, such as char, or an enumerator. It is sent as bytes.
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

/// An optimizer that exposes its state. It need not know this library:
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

/// Copies root's optimizer state to all ranks, for instance after a resume. Pass the wrapped
/// optimizer, not the DistributedOptimizer. Names, dtypes and shapes must be the same on all ranks,
/// so tensors that the first step creates must exist. Otherwise all ranks throw Error(mismatch)
/// with what differs, and nothing is copied.
template <StatefulOptimizer O>
void broadcast_optimizer_state(O& optimizer, int root = 0, const ProcessSet& process_set = {}) {
    OptimizerState state;
    optimizer.visit_state(state);
    state.broadcast(root, process_set);
}

/// Throws Error(mismatch) on every rank unless all ranks hold the same values; the error names the
/// first tensor that differs, and on which ranks. Compares a 64-bit hash of the bits. `stream`
/// produces the values on its device, as in ElementOptions.
GUOZHUANG_API void check_consistent(std::span<const Parameter> parameters,
                                    const ProcessSet& process_set = {},
                                    const std::optional<StreamRef>& stream = {});

/// The mean of each metric over the ranks. Every rank must pass the same keys; otherwise all throw
/// Error(mismatch) with the keys that not all have.
GUOZHUANG_API std::map<std::string, double> average_metrics(
    const std::map<std::string, double>& metrics, const ProcessSet& process_set = {});

/// Scales the gradients so that their global 2-norm is at most `max_norm`. Returns the norm before
/// scaling. Local: call it after synchronize(), when all ranks hold the same gradients; then all
/// get the same bits, on the host and on devices. Blocks until the devices have computed the norm;
/// on a device it only enqueues the scaling. Throws Error(invalid_argument), before anything is
/// changed, for a `max_norm` below 0 or NaN and for gradients that are not floating; also what
/// norm() and scale() throw (see elements.hpp).
GUOZHUANG_API double clip_by_global_norm(std::span<const Parameter> parameters, double max_norm,
                                         const ElementOptions& options = {});

/// The linear scaling rule (Goyal et al. 2017): rate * size. Local.
GUOZHUANG_API double scale_learning_rate(double rate, const ProcessSet& process_set = {});

/// How many steps it takes until the ranks together have seen `samples` samples, `batch` on each
/// rank in each step; rounded up. Local. Throws Error(invalid_argument) for a batch of 0.
GUOZHUANG_API std::size_t steps_per_epoch(std::size_t samples, std::size_t batch,
                                          const ProcessSet& process_set = {});

/// Prints a line to standard output on the first rank. Local.
GUOZHUANG_API void print_once(std::string_view line, const ProcessSet& process_set = {});

}  // namespace guozhuang
