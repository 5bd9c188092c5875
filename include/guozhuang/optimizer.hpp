#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <guozhuang/arena.hpp>
#include <guozhuang/plan.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace guozhuang {

/// Anything that turns gradients into new parameter values.
template <class O>
concept Optimizer = requires(O& optimizer) { optimizer.step(); };

/// What becomes of the memory that gradients are in.
enum class Memory : std::uint8_t {
    as_is,  ///< nothing
    share  ///< it is shared with the other ranks of the host (see share()) as long as the optimizer lives, so that they are reduced in place
};

/// How gradients are reduced. The same on all ranks of the process set, apart from the stream.
struct OptimizerOptions {
    /// The same on all ranks, unique among the optimizers of this rank and process set that live. Empty: numbered in the order in which this rank
    /// makes them there.
    std::string name = {};
    ReduceOp op = ReduceOp::average;  ///< over the ranks
    /// Gradients accumulate over that many calls of step(); only the last of them reduces and steps. As in one process backward adds to the
    /// gradients, the trainer clears them after a step that stepped, and divides the loss where it wants the mean over the passes.
    int backward_passes_per_step = 1;
    double gradient_scale = 1;                  ///< every reduced gradient is multiplied by it; floating gradients only
    std::size_t bundle_bytes = 25u << 20;       ///< gradients travel in bundles of about this size
    std::size_t first_bundle_bytes = 1u << 20;  ///< the first is small, so that something is on its way early
    std::optional<StreamRef> stream = {};       ///< on which backward runs, for gradients on a device
    Session* session = nullptr;                 ///< as in Options
    ProcessSet process_set = {};                ///< whose ranks train together; as in Options
    /// `share` makes construction collective, and is not for a process set. The optimizer must end before the gradients' memory is freed.
    Memory memory = Memory::as_is;
};

/// What a DistributedOptimizer does with gradients, apart from stepping: counts them, reduces them bundle by bundle in reverse order of the
/// parameters, waits. One thread at a time.
class GUOZHUANG_API GradientReducer {
public:
    /// Throws Error(invalid_argument) for empty or duplicate names of parameters, a value and gradient that differ in shape, or options out of
    /// range; Error(duplicate_name) if another optimizer or plan has the name; Error(not_initialised).
    explicit GradientReducer(std::vector<Parameter> parameters, const OptimizerOptions& options = {});
    ~GradientReducer();
    GradientReducer(GradientReducer&&) noexcept;

    /// The gradient of a parameter is final for this pass. Once all of a bundle are, it flies while backward still runs. Ignored in passes
    /// that only accumulate. Throws Error(invalid_argument) for an unknown parameter or one marked twice.
    void mark(std::size_t parameter);  ///< by its position in the constructor's list
    void mark(std::string_view name);  ///< by its name

    /// Waits until every gradient holds its reduced value. If hooks were never used, all gradients are taken as ready; otherwise those that were
    /// marked in no pass of this step are set to zero, with one warning. Does nothing the second time in a step. When it throws, the step is
    /// over: gradients may be reduced or not, and the next backward begins a new one.
    void synchronize();
    /// Ends a pass; true if it was one that reduces (and then everything is synchronised). Throws Error(invalid_argument) when hooks are in use
    /// and nothing was marked since the last step: step() was called twice. Without hooks nobody can tell: a second call without a backward
    /// between reduces the gradients again as they are, averages of averages.
    bool finish_pass();

    void pause() noexcept;   ///< see DistributedOptimizer::no_sync; counted
    void resume() noexcept;  ///< takes one pause() back

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// What on_gradient() gives to backward: call it with the parameter's position or name when its gradient is final. Never blocks; throws what
/// GradientReducer::mark does. Cheap to copy; valid as long as its optimizer stays where it is. One thread at a time.
class GradientHook {
public:
    explicit GradientHook(GradientReducer& reducer) noexcept : reducer_(&reducer) {}
    void operator()(std::size_t parameter) const { reducer_->mark(parameter); }
    void operator()(std::string_view name) const { reducer_->mark(name); }

private:
    GradientReducer* reducer_;
};

/// Makes a single-process optimizer a data-parallel one: step() averages the gradients over all ranks (of its process set), then lets the wrapped optimizer step.
/// The wrapped optimizer and the parameters' memory must outlive it. Construction is not collective, unless it shares memory; step() is. One thread at
/// a time.
template <Optimizer O>
class DistributedOptimizer {
public:
    /// Throws what GradientReducer's constructor does.
    DistributedOptimizer(O& optimizer, std::vector<Parameter> parameters, const OptimizerOptions& options = {})
        : optimizer_(&optimizer), reducer_(std::move(parameters), options) {}

    /// A hook for backward, so that reduction overlaps with it. Optional: without it step() reduces everything.
    GradientHook on_gradient() noexcept { return GradientHook(reducer_); }

    /// Waits for the averages, then steps. Returns false, having done nothing, in a pass that only accumulates. Throws Error: mismatch or departed
    /// on all ranks (and then the wrapped optimizer has not stepped), invalid_argument if hooks are used and step() is called twice.
    ///
    /// Without hooks a second call cannot be told from a first one: it steps again, with the same gradients. Call it once for each backward.
    bool step() {
        if (!reducer_.finish_pass()) return false;
        optimizer_->step();
        return true;
    }

    /// The averages alone, e.g. to clip them; the next step() then only steps.
    void synchronize() { reducer_.synchronize(); }

    /// While the guard lives, gradients only accumulate: hooks are ignored. For accumulation loops that call step() once at their end.
    class NoSync {
    public:
        explicit NoSync(GradientReducer& reducer) noexcept : reducer_(reducer) { reducer_.pause(); }
        ~NoSync() { reducer_.resume(); }
        NoSync(const NoSync&) = delete;
        NoSync& operator=(const NoSync&) = delete;

    private:
        GradientReducer& reducer_;
    };
    [[nodiscard]] NoSync no_sync() noexcept { return NoSync(reducer_); }

    /// The optimizer of the constructor.
    O& wrapped() noexcept { return *optimizer_; }

private:
    O* optimizer_;
    GradientReducer reducer_;
};

}  // namespace guozhuang
