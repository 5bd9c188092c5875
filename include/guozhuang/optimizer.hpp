#pragma once

#include <chrono>
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
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace guozhuang {

/// Anything that turns gradients into new parameter values.
template <class O>
concept Optimizer = requires(O& optimizer) { optimizer.step(); };

/// How a DistributedOptimizer treats the memory of gradients.
enum class Memory : std::uint8_t {
    as_is,  ///< nothing
    /// Shares it with the other ranks of the host (see share()) as long as the optimizer lives, so
    /// that gradients are reduced in place.
    share
};

/// How gradients are reduced. The same on all ranks of the process set, but for the stream and the
/// memory of `uses`, which all ranks or none have, in one size.
struct OptimizerOptions {
    /// The same on all ranks; unique among the optimizers of this rank and process set that live.
    /// Empty: numbered in the order in which this rank makes them.
    std::string name = {};
    ReduceOp op = ReduceOp::average;  ///< over the ranks
    /// Gradients accumulate over that many calls of step(); only the last of them reduces and
    /// steps. As in a single process, backward adds to the gradients. The trainer clears them after
    /// a call that stepped, and divides the loss if it wants the mean over the passes.
    int backward_passes_per_step = 1;
    /// Every reduced gradient is multiplied by this. Floating gradients only.
    double gradient_scale = 1;
    std::size_t bundle_bytes = 25u << 20;  ///< gradients travel in bundles of about this size
    /// The size of the first bundle: a small one, so that communication starts early.
    std::size_t first_bundle_bytes = 1u << 20;
    /// The stream on which backward runs, for gradients on a device, and on which the wrapped
    /// optimizer then works: step() makes it wait for the averages, and does not wait for the
    /// device itself. Without one it is the default stream of the gradients' device. set_stream()
    /// changes it.
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks train together; as in Options
    /// Whether the first batch, and the first after each join, compares the parameters' values over
    /// the ranks. If they differ, its step() fails with Error(mismatch) on all ranks, which names
    /// the first parameter that differs, before anything is changed. Compared are the values at the
    /// first hook of the batch, also one that no_sync() ignores or that only accumulates; without
    /// hooks, at its first call of step() or synchronize(). A trainer may change values later in
    /// the batch, and must restore them before step(). Values are compared by a 64-bit hash of
    /// their bits, which travels with the first bundle; where they are on a device, that hook or
    /// step waits until the device has come to it. Compares parameters with a gradient (with `uses`
    /// all) whose values are without strides, and not the gradient's memory.
    bool check_values = true;
    /// `share` makes construction collective, and is not for a process set. The optimizer must end
    /// before the gradients' memory is freed.
    Memory memory = Memory::as_is;
    /// Host memory with a number for each parameter (at least one), which outlives the optimizer.
    /// With it the ranks tell each other which gradients they have marked: see
    /// GradientReducer::is_used. For averages, sums and Adasum. Gradients that this rank has not
    /// marked are then sent as they are. A parameter without a gradient can be marked, too, and its
    /// value is compared: its gradient is reduced by the caller.
    std::span<float> uses = {};
    /// For each parameter the number of its group, or less than 0: gradients of a group travel
    /// together, whatever their size, as far as their dtype and device are the same. Empty: none.
    std::vector<int> groups = {};
};

/// Callbacks of a GradientReducer, on the thread that calls it: meant for bindings to frameworks.
struct BatchCalls {
    /// Returns the stream on which the caller works now, if any, for set_stream(). Called by mark()
    /// and by whatever closes a batch or waits for it.
    std::function<std::optional<StreamRef>()> stream = {};
    /// Called when this rank closes the batch, before it sends the rest: the last chance to fill
    /// gradients that it has not marked. If it throws, all ranks discard the batch.
    std::function<void()> closing = {};
    /// Called when every gradient holds its reduced value, by discard() of a closed batch too. If
    /// it throws, this rank leaves the batch out, as discard() does then.
    std::function<void()> reduced = {};
};

/// How long the reduction of all gradients takes: see GradientReducer::measure_sharing.
struct SharingTimes {
    bool possible = false;  ///< whether sharing could be measured; if not, shared_s is private_s
    double private_s = 0;   ///< seconds, from private memory
    double shared_s = 0;    ///< seconds, from the same memory, shared as share() does
    /// Whether sharing saves a tenth of the time or more.
    bool pays() const noexcept { return shared_s <= 0.9 * private_s; }
};

/// The part of a DistributedOptimizer that handles gradients: counts them, reduces them bundle by
/// bundle in reverse order of the parameters, and waits. The bundle that is complete last is held
/// back until synchronize(), so that each rank can discard the batch until then. One thread at a
/// time.
class GUOZHUANG_API GradientReducer {
public:
    /// Parameters without a gradient are ignored unless the options have `uses`. Throws
    /// Error(invalid_argument) for empty or duplicate names of parameters, a value and gradient of
    /// different shapes, no gradient at all (without `uses`), or options out of range;
    /// Error(duplicate_name) if another optimizer or plan has the name; Error(not_initialised).
    explicit GradientReducer(std::vector<Parameter> parameters,
                             const OptimizerOptions& options = {}, BatchCalls calls = {});
    ~GradientReducer();
    GradientReducer(GradientReducer&&) noexcept;

    /// Says that a parameter's gradient is final for this pass. When all of a bundle are, it is
    /// sent while backward still runs. Ignored in passes that only accumulate. Throws
    /// Error(invalid_argument) for an unknown parameter, one without a gradient (without `uses`),
    /// or a gradient marked twice, and what a submission throws. After such an error the batch has
    /// failed: further marks are ignored, and synchronize() throws it again.
    void mark(std::size_t parameter);  ///< by its position in the constructor's list
    void mark(std::string_view name);  ///< by its name

    /// From now on this stream takes the place of the options', for gradients on its device: what
    /// is marked next was enqueued on it, and it waits for the averages. A bundle waits for every
    /// stream on which its gradients were marked. Enqueues nothing, so a trainer that changes
    /// streams makes the new one wait for the old one's work on the parameters, as it does without
    /// this library. The stream must live until the step that ends the batch has returned. Throws
    /// Error(invalid_argument) if no gradient is on the stream's device.
    void set_stream(StreamRef stream);

    /// Sends all that synchronize() waits for, and does not wait; also if nothing was marked. Does
    /// nothing in a pass that only accumulates. Throws as synchronize().
    void close();
    /// Waits until every gradient holds its reduced value; of gradients on a device only until
    /// their reduction is enqueued, for which the stream of the options then waits. If hooks were
    /// never used, all gradients count as ready. Otherwise gradients that were marked in no pass of
    /// this step are set to zero, with one warning; with `uses` they are sent as they are. A second
    /// call in a step does nothing.
    ///
    /// If it throws, the batch is over on all ranks: gradients may be reduced or not, and the next
    /// backward begins a new batch. Errors that only this rank knows (of a hook, or of a gradient
    /// that cannot be cleared) discard the batch before they are thrown. The exception is the error
    /// that step() was called twice: it discards nothing. If this rank has no gradient at all in a
    /// batch, call discard().
    void synchronize();
    /// The same for at most `limit`, so that the caller can do something else in between; false if
    /// not all gradients are there by then. Another call goes on.
    bool synchronize_for(std::chrono::microseconds limit);
    /// Ends a pass. Returns true if it was one that reduces: then everything has been synchronised,
    /// and `step` called. If `step` throws, the gradients stay as they are: another call only calls
    /// `step` again, and discard() leaves the batch out. Call one of them before the next backward:
    /// else a hook throws, and without hooks `step` gets gradients that were not reduced, which no
    /// rank notices.
    ///
    /// Throws Error(invalid_argument) if hooks are in use and nothing was marked since the last
    /// step: step() was called twice. Without hooks that cannot be found out: a second call without
    /// a backward between reduces the gradients again, to averages of averages.
    bool finish_pass(const std::function<void()>& step = {});
    /// Discards this batch: for a rank that cannot go on with it, for instance after an exception
    /// in backward. Call it instead of the step() that ends the batch, in any pass of it, with
    /// hooks or without. On all other ranks that step() then throws Error(discarded), with the
    /// ranks that have discarded the batch and why. No rank steps, gradients may be reduced or not,
    /// and the next backward begins a new batch on all ranks. Waits, as step() does, until every
    /// rank has come to the end of the batch. Throws errors of synchronize() that are not about the
    /// batch.
    ///
    /// After synchronize() or synchronize_for(), or after an exception of the wrapped optimizer in
    /// step(), all ranks have reduced the batch and may have stepped with it. Then the batch is
    /// left out on this rank only, without waiting (but for averages that synchronize_for() has not
    /// waited for). All ranks must do the same (for instance skip a
    /// batch whose reduced gradients are not finite). Otherwise their parameters part, and every
    /// later reduction fails with Error(mismatch) on all.
    void discard(std::string_view reason);

    /// Measures how much time Memory::share, or share() of the gradients, would save: reduces zeros
    /// of their shapes and dtypes, in the same bundles, with the same op and scale, from private
    /// memory (5 times), from the same memory shared (9 times) and from private memory again (5
    /// times), and returns the medians, without the first of each turn. Touches neither the
    /// gradients nor the batch. Needs as much memory as the gradients meanwhile. Leaves out
    /// gradients on devices, which cannot be shared.
    ///
    /// Collective, as a step, and as share() where it can be measured. All ranks get the same
    /// figures, so they can act alike: the median of the slowest rank, because a step of the job
    /// lasts until its last rank has the averages. Sharing cannot be measured on several hosts,
    /// without shared memory, in a process set, and if there is one rank.
    ///
    /// Throws Error(invalid_argument) on all ranks if a batch has begun on some rank, and what
    /// operations throw. A rank without enough memory ends the job with Error(out_of_memory).
    SharingTimes measure_sharing() const;

    /// The one of the options, or the numbered one: the same on all ranks, unique on each.
    const std::string& name() const& noexcept;
    std::string name() && { return std::as_const(*this).name(); }

    /// Whether this rank has marked the parameter's gradient, or one with the same memory, in this
    /// batch. After synchronize(), with OptimizerOptions::uses: whether any rank has.
    bool is_used(std::size_t parameter) const;

    void pause() noexcept;   ///< see NoSync; counted
    void resume() noexcept;  ///< takes one pause() back
    bool is_paused() const noexcept;
    bool is_closed() const noexcept;  ///< all that synchronize() waits for is sent
    /// Every gradient holds its reduced value; neither a step nor discard() has ended the batch.
    bool is_synchronised() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// The hook that on_gradient() gives to backward: call it with the parameter's index or name when
/// its gradient is final. Never blocks, but for the first comparison of values on a device
/// (OptimizerOptions::check_values). Throws what GradientReducer::mark() throws, which step()
/// throws again. Cheap to copy; valid as long as its optimizer is not moved. One thread at a time.
class GradientHook {
public:
    explicit GradientHook(GradientReducer& reducer) noexcept : reducer_(&reducer) {}
    void operator()(std::size_t parameter) const { reducer_->mark(parameter); }
    void operator()(std::string_view name) const { reducer_->mark(name); }

private:
    GradientReducer* reducer_;
};

/// While it lives, gradients only accumulate: hooks are ignored. For accumulation loops that call
/// step() once at their end.
class NoSync {
public:
    explicit NoSync(GradientReducer& reducer) noexcept : reducer_(reducer) { reducer_.pause(); }
    ~NoSync() { reducer_.resume(); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

private:
    GradientReducer& reducer_;
};

/// Makes a single-process optimizer a data-parallel one: step() averages the gradients over all
/// ranks (of its process set), then lets the wrapped optimizer step. The wrapped optimizer and the
/// parameters' memory must outlive it. Construction is collective only if it shares memory. step()
/// is: every rank calls it, or discard(), once for each batch, and several optimizers in the same
/// order. One thread at a time.
template <Optimizer O>
class DistributedOptimizer {
public:
    /// Throws what GradientReducer's constructor throws.
    DistributedOptimizer(O& optimizer, std::vector<Parameter> parameters,
                         const OptimizerOptions& options = {})
        : optimizer_(&optimizer), reducer_(std::move(parameters), options) {}

    /// A hook for backward, so that reduction overlaps with it. Optional: without it step() reduces
    /// everything.
    GradientHook on_gradient() & noexcept { return GradientHook(reducer_); }

    /// Later marks and steps are on this stream: see GradientReducer::set_stream.
    void set_stream(StreamRef stream) { reducer_.set_stream(stream); }

    /// Waits for the averages, then steps. On a device nobody waits but its stream: `step` of the
    /// wrapped optimizer enqueues its work behind the averages, on the stream of the options, and
    /// this may return before any of that is done. An operation that fails after it was enqueued
    /// ends the job: the next call throws that. In a pass that only accumulates, does nothing and
    /// returns false. Throws Error: mismatch, departed or discarded on all ranks, of which none has
    /// then stepped; what a hook has thrown in this batch (discarded on the other ranks);
    /// invalid_argument if hooks are used and step() is called twice. After an exception of the
    /// wrapped optimizer, which it throws too, call it again, and it only steps, with the same
    /// averages; or call discard().
    ///
    /// Without hooks a second call cannot be told from a first one: it steps again with the same
    /// gradients. Call it once after each backward.
    bool step() {
        return reducer_.finish_pass([this] { optimizer_->step(); });
    }

    /// Instead of step(), on a rank that cannot go on with this batch: it fails on all ranks, which
    /// all go on with the next. See GradientReducer::discard.
    ///
    ///     try {
    ///         model.backward(batch, optimizer.on_gradient());
    ///     } catch (const std::exception& error) {
    ///         optimizer.discard(error.what());
    ///         continue;
    ///     }
    void discard(std::string_view reason) { reducer_.discard(reason); }

    /// Computes the averages without stepping, e.g. to clip them; the next step() then only steps.
    void synchronize() { reducer_.synchronize(); }
    /// The same for at most `limit`; see GradientReducer::synchronize_for.
    bool synchronize_for(std::chrono::microseconds limit) {
        return reducer_.synchronize_for(limit);
    }

    /// Measures, between two steps, what it would save to share the gradients; see
    /// GradientReducer::measure_sharing.
    SharingTimes measure_sharing() const { return reducer_.measure_sharing(); }

    /// While the guard lives, gradients only accumulate.
    [[nodiscard]] NoSync no_sync() & noexcept { return NoSync(reducer_); }

    /// The optimizer of the constructor.
    O& wrapped() noexcept { return *optimizer_; }

private:
    O* optimizer_;
    GradientReducer reducer_;
};

}  // namespace guozhuang
