#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
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
    /// It is shared with the other ranks of the host (see share()) as long as the optimizer lives,
    /// so that gradients are reduced in place.
    share
};

/// How gradients are reduced. The same on all ranks of the process set, apart from the stream.
struct OptimizerOptions {
    /// The same on all ranks, unique among the optimizers of this rank and process set that live.
    /// Empty: numbered in the order in which this rank makes them there.
    std::string name = {};
    ReduceOp op = ReduceOp::average;  ///< over the ranks
    /// Gradients accumulate over that many calls of step(); only the last of them reduces and
    /// steps. As in one process backward adds to the gradients, the trainer clears them after a
    /// step that stepped, and divides the loss where it wants the mean over the passes.
    int backward_passes_per_step = 1;
    /// Every reduced gradient is multiplied by it; floating gradients only.
    double gradient_scale = 1;
    std::size_t bundle_bytes = 25u << 20;  ///< gradients travel in bundles of about this size
    /// The first bundle is small, so that something is on its way early.
    std::size_t first_bundle_bytes = 1u << 20;
    /// The stream on which backward runs, for gradients on a device.
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks train together; as in Options
    /// The first step(), and the first after each join(), compares the parameters' values over the
    /// ranks, by a 64-bit hash of their bits that travels with the first bundle: where they differ
    /// it fails with Error(mismatch) on all ranks, which names the first parameter that differs,
    /// before anything is changed. Of parameters with a gradient, whose values are host memory,
    /// given without strides, other than the gradient's.
    bool check_values = true;
    /// `share` makes construction collective, and is not for a process set. The optimizer must end
    /// before the gradients' memory is freed.
    Memory memory = Memory::as_is;
};

/// What a DistributedOptimizer does with gradients, apart from stepping: counts them, reduces them
/// bundle by bundle in reverse order of the parameters, waits. The bundle that is complete last is
/// held back until synchronize(), so that until then any rank can discard the batch. One thread at
/// a time.
class GUOZHUANG_API GradientReducer {
public:
    /// Parameters without a gradient are left alone. Throws Error(invalid_argument) for empty or
    /// duplicate names of parameters, a value and gradient that differ in shape, no gradient at
    /// all, or options out of range; Error(duplicate_name) if another optimizer or plan has the
    /// name; Error(not_initialised).
    explicit GradientReducer(std::vector<Parameter> parameters,
                             const OptimizerOptions& options = {});
    ~GradientReducer();
    GradientReducer(GradientReducer&&) noexcept;

    /// The gradient of a parameter is final for this pass. Once all of a bundle are, it flies while
    /// backward still runs. Ignored in passes that only accumulate. Throws Error(invalid_argument)
    /// for an unknown parameter, one without a gradient, or one marked twice, and what a submission
    /// throws. Such an error is kept: the batch has failed, further marks are ignored, and
    /// synchronize() throws it again.
    void mark(std::size_t parameter);  ///< by its position in the constructor's list
    void mark(std::string_view name);  ///< by its name

    /// Waits until every gradient holds its reduced value. If hooks were never used, all gradients
    /// are taken as ready; otherwise those that were marked in no pass of this step are set to
    /// zero, with one warning. Does nothing the second time in a step. When it throws, the batch is
    /// over: gradients may be reduced or not, and the next backward begins a new one. That is so on
    /// all ranks: what only this one can know (the error of a hook, a gradient that cannot be
    /// zeroed) discards the batch before it is thrown. Only "was it called twice?" does not: a
    /// batch in which this rank has no gradient at all is ended by discard().
    void synchronize();
    /// Ends a pass; true if it was one that reduces: then everything has been synchronised, and
    /// `step` called. If `step` throws, the gradients stay as they are, and calling this again only
    /// calls it again. If backward runs instead (a hook is called, or gradients in host memory have
    /// changed), the batch is left out as by discard(). Throws Error(invalid_argument) when hooks
    /// are in use and nothing was marked since the last step: step() was called twice. Without
    /// hooks nobody can tell: a second call without a backward between reduces the gradients again
    /// as they are, averages of averages.
    bool finish_pass(const std::function<void()>& step = {});
    /// For a rank that cannot go on with this batch, after an exception in the middle of backward
    /// say. To be called in place of the step() that ends the batch, in whatever pass of it, with
    /// hooks or without: then that step() throws Error(discarded), with ranks that discarded it and
    /// why, on all ranks that call it, no rank steps, and the next backward begins a new batch on
    /// all. Waits, as step() does, until every rank has come to the end of the batch. Gradients may
    /// be reduced or not. Throws what synchronize() does of errors that are not about the batch.
    ///
    /// After synchronize(), or a step() that the wrapped optimizer left by an exception, the batch
    /// has been reduced on all ranks, which may have stepped with it: it is then left out on this
    /// rank alone, without waiting. All ranks must do so alike (skip a batch whose reduced
    /// gradients are not finite, say); if they do not, their parameters have parted, and every
    /// later reduction fails with Error(mismatch) on all.
    void discard(std::string_view reason);

    void pause() noexcept;   ///< see DistributedOptimizer::no_sync; counted
    void resume() noexcept;  ///< takes one pause() back

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// What on_gradient() gives to backward: call it with the parameter's position or name when its
/// gradient is final. Never blocks; throws what GradientReducer::mark does, which step() throws
/// again. Cheap to copy; valid as long as its optimizer stays where it is. One thread at a time.
class GradientHook {
public:
    explicit GradientHook(GradientReducer& reducer) noexcept : reducer_(&reducer) {}
    void operator()(std::size_t parameter) const { reducer_->mark(parameter); }
    void operator()(std::string_view name) const { reducer_->mark(name); }

private:
    GradientReducer* reducer_;
};

/// Makes a single-process optimizer a data-parallel one: step() averages the gradients over all
/// ranks (of its process set), then lets the wrapped optimizer step. The wrapped optimizer and the
/// parameters' memory must outlive it. Construction is not collective, unless it shares memory;
/// step() is: every rank calls it once for each batch, or discard(), and several optimizers in the
/// same order. One thread at a time.
template <Optimizer O>
class DistributedOptimizer {
public:
    /// Throws what GradientReducer's constructor does.
    DistributedOptimizer(O& optimizer, std::vector<Parameter> parameters,
                         const OptimizerOptions& options = {})
        : optimizer_(&optimizer), reducer_(std::move(parameters), options) {}

    /// A hook for backward, so that reduction overlaps with it. Optional: without it step() reduces
    /// everything.
    GradientHook on_gradient() noexcept { return GradientHook(reducer_); }

    /// Waits for the averages, then steps. Returns false, having done nothing, in a pass that only
    /// accumulates. Throws Error: mismatch, departed or discarded on all ranks (and then the
    /// wrapped optimizer has stepped on none), what a hook has thrown in this batch (the others:
    /// discarded), invalid_argument if hooks are used and step() is called twice; and what the
    /// wrapped optimizer throws: then calling it again only steps, with the same averages.
    ///
    /// Without hooks a second call cannot be told from a first one: it steps again, with the same
    /// gradients. Call it once for each backward.
    bool step() {
        return reducer_.finish_pass([this] { optimizer_->step(); });
    }

    /// In place of step(), on a rank that cannot go on with this batch: it fails on all ranks, and
    /// all go on with the next. See GradientReducer::discard.
    ///
    ///     try {
    ///         model.backward(batch, optimizer.on_gradient());
    ///     } catch (const std::exception& error) {
    ///         optimizer.discard(error.what());
    ///         continue;
    ///     }
    void discard(std::string_view reason) { reducer_.discard(reason); }

    /// The averages alone, e.g. to clip them; the next step() then only steps.
    void synchronize() { reducer_.synchronize(); }

    /// While the guard lives, gradients only accumulate: hooks are ignored. For accumulation loops
    /// that call step() once at their end.
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
