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
    as_is,  ///< leaves it as it is
    /// Shares it with the other ranks of the host (see share()) as long as the optimizer lives, so
    /// that gradients are reduced in place.
    share
};

/// How gradients are compressed for the wire (docs/training/compression.md).
enum class Codec : std::uint8_t {
    none,
    int8,     ///< a byte for each element, and a scale for each 256
    onebit,   ///< a bit for each element, and a scale for each tensor
    topk,     ///< the largest elements of each tensor, with their indices
    powersgd  ///< matrices as products of two thin ones
};
constexpr Codec last_of(Codec) noexcept {
    return Codec::powersgd;
}
/// "none", "int8" ...
GUOZHUANG_API std::string_view name_of(Codec codec) noexcept;

/// A codec and its settings; the same on all ranks.
struct Compression {
    Codec codec = Codec::none;
    double density = 0.01;  ///< topk: the fraction of elements that is sent, at least one a tensor
    int rank = 4;           ///< powersgd: columns of the thin matrices
    /// Whether the error of a step is added to the next step's gradients. Without it onebit and
    /// topk need not converge. A codec takes at least as much memory as the gradients.
    bool error_feedback = true;
};

/// How gradients are reduced. The same on all ranks of the process set, except the stream and the
/// memory of `uses`: all ranks give one of the same size, or none does.
struct OptimizerOptions {
    /// The same on all ranks; unique among the live optimizers of this rank and process set. Empty:
    /// numbered in the order in which this rank makes them.
    std::string name = {};
    ReduceOp op = ReduceOp::average;  ///< over the ranks
    /// Gradients accumulate over this many calls of step(); only the last call reduces and steps.
    /// As in a single process, backward adds to the gradients. The trainer clears them after a call
    /// that stepped, and divides the loss if it wants the mean over the passes.
    int backward_passes_per_step = 1;
    /// Every reduced gradient is multiplied by this. Floating gradients only.
    double gradient_scale = 1;
    std::size_t bundle_bytes = 25u << 20;  ///< gradients travel in bundles of about this size
    /// The size of the first bundle: a small one, so that communication starts early.
    std::size_t first_bundle_bytes = 1u << 20;
    /// For gradients on a device: the stream on which backward runs, and on which the wrapped
    /// optimizer then works. step() makes it wait for the averages, and does not itself wait for
    /// the device. Empty: the default stream of the gradients' device. set_stream() changes it.
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks train together; as in Options
    /// Whether the first batch, and the first after each join, compares the parameters' values
    /// between the ranks. If they differ, step() fails on all ranks before anything is changed,
    /// with Error(mismatch), which names the first parameter that differs. It compares the values
    /// as they are at the first hook of the batch, even one that no_sync() ignores or that only
    /// accumulates; without hooks, at the first call of step() or synchronize(). A trainer that
    /// changes values later in the batch must restore them before step(). The ranks compare a
    /// 64-bit hash of the bits, which travels with the first bundle; for values on a device, that
    /// hook or step waits until the device has delivered them. Covers parameters with a gradient
    /// (with `uses`: all), but no value with strides or in the gradient's own memory.
    bool check_values = true;
    /// `share` makes construction collective, and cannot be combined with a process set. Destroy
    /// the optimizer before the gradients' memory is freed.
    Memory memory = Memory::as_is;
    /// Host memory with a number for each parameter (at least one), which outlives the optimizer.
    /// With it the ranks tell each other which gradients they have marked: see
    /// GradientReducer::is_used. For averages, sums and Adasum. Gradients that this rank has not
    /// marked are then sent as they are. A parameter without a gradient can be marked, too, and its
    /// value is compared; the caller reduces its gradient.
    std::span<float> uses = {};
    /// With a codec, gradients (f32, on the host; op average or sum) are reduced within
    /// synchronize(), once all ranks have all of them, instead of while backward runs. So all ranks
    /// synchronise their optimizers in the same order, and synchronize_for() and a discard() after
    /// close() may block until all have come. Cannot be combined with Memory::share or gradients
    /// with the same memory.
    Compression compression = {};
    /// For each parameter the number of its group, or a negative number for none. Gradients of a
    /// group that have the same dtype and device travel together, whatever their size. Empty: no
    /// groups.
    std::vector<int> groups = {};
};

/// Callbacks of a GradientReducer, for bindings to frameworks. They run on the thread that calls
/// it.
struct BatchCalls {
    /// Returns the stream on which the caller works now, if any, for set_stream(). Called by mark()
    /// and by every function that closes a batch or waits for it.
    std::function<std::optional<StreamRef>()> stream = {};
    /// Called when this rank closes the batch, before it sends the rest: the last chance to fill
    /// gradients that it has not marked. If it throws, all ranks discard the batch.
    std::function<void()> closing = {};
    /// Called once every gradient is reduced, also when discard() ends a batch that was already
    /// closed. If it throws, this rank alone skips the batch.
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
/// bundle in reverse order of the parameters, and waits. It holds the last bundle to become
/// complete back until synchronize(), so that each rank can discard the batch until then. One
/// thread at a time.
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

    /// Marks a parameter's gradient as final for this pass. A bundle whose gradients are all final
    /// is sent while backward still runs. Ignored in passes that only accumulate. Throws
    /// Error(invalid_argument) for an unknown parameter, one without a gradient (without `uses`),
    /// or a gradient marked twice, and what a submission throws. After such an error the batch has
    /// failed: further marks are ignored, and synchronize() throws the error again.
    void mark(std::size_t parameter);  ///< by its position in the constructor's list
    void mark(std::string_view name);  ///< by its name

    /// Replaces the stream of the options for gradients on its device: gradients marked from now on
    /// were enqueued on it, and it waits for the averages. A bundle waits for every stream on which
    /// its gradients were marked. Enqueues nothing: a trainer that changes streams must make the
    /// new stream wait for work on the parameters that is on the old one, as it must without this
    /// library. The stream must live until the step that ends the batch has returned. Throws
    /// Error(invalid_argument) if no gradient is on the stream's device.
    void set_stream(StreamRef stream);

    /// Sends everything that synchronize() waits for, even if nothing was marked, and does not
    /// wait. Does nothing in a pass that only accumulates. Throws as synchronize() does.
    void close();
    /// Waits until every gradient holds its reduced value; for gradients on a device only until
    /// their reduction is enqueued, and the stream of the options then waits for it. If hooks were
    /// never used, all gradients count as ready. Otherwise gradients that were not marked in any
    /// pass of this step are set to zero, with one warning; with `uses` they are sent as they are.
    /// A second call in a step does nothing.
    ///
    /// If it throws, the batch is over on all ranks: gradients may be reduced or not, and the next
    /// backward begins a new batch. Errors that only this rank knows (from a hook, or a gradient
    /// that cannot be cleared) discard the batch before they are thrown. Only the error that step()
    /// was called twice discards nothing. If this rank has no gradient at all in a batch, call
    /// discard().
    void synchronize();
    /// The same, for at most `limit`, so that the caller can do something else in between. Returns
    /// false if not all gradients are reduced by then; another call waits for the rest.
    bool synchronize_for(std::chrono::microseconds limit);
    /// Ends a pass. If the pass reduces, synchronises, calls `step` and returns true. If `step`
    /// throws, the gradients stay as they are: another call only calls `step` again, and discard()
    /// skips the batch. Call one of them before the next backward; otherwise a hook throws, or,
    /// without hooks, `step` gets gradients that were not reduced, which no rank notices.
    ///
    /// Throws Error(invalid_argument) if hooks are in use and nothing was marked since the last
    /// step: step() was called twice. Without hooks this cannot be detected: a second call without
    /// a backward in between reduces the gradients again, to averages of averages.
    bool finish_pass(const std::function<void()>& step = {});
    /// Discards this batch: for a rank that cannot go on with it, for instance after an exception
    /// in backward. Call it instead of the step() that ends the batch, in any pass of it, with
    /// hooks or without. On all other ranks that step() then throws Error(discarded), with the
    /// ranks that have discarded the batch and why. No rank steps, gradients may be reduced or not,
    /// and the next backward begins a new batch on all ranks. Waits, as step() does, until every
    /// rank has reached the end of the batch. Throws those errors of synchronize() that are not
    /// about the batch.
    ///
    /// After synchronize() or synchronize_for(), or after an exception of the wrapped optimizer in
    /// step(), all ranks have reduced the batch and may have stepped with it. Then only this rank
    /// skips the batch, without waiting (except for averages that synchronize_for() has not waited
    /// for). All ranks must do the same (for instance skip a batch whose reduced gradients are not
    /// finite). Otherwise their parameters diverge, and every later reduction fails with
    /// Error(mismatch) on all ranks.
    void discard(std::string_view reason);

    /// Measures how much time Memory::share, or share() of the gradients, would save: reduces zeros
    /// of their shapes and dtypes, in the same bundles, with the same op and scale, from private
    /// memory (5 times), from the same memory shared (9 times) and from private memory again (5
    /// times), and returns the medians, without the first run of each series. Touches neither the
    /// gradients nor the batch. Temporarily needs as much memory as the gradients. Leaves out
    /// gradients on devices, which cannot be shared.
    ///
    /// Collective like a step, and like share() if sharing can be measured. All ranks get the same
    /// figures, so they can decide alike: the median of the slowest rank, because a step of the job
    /// lasts until its last rank has the averages. Sharing cannot be measured on several hosts,
    /// without shared memory, in a process set, or with a single rank.
    ///
    /// Throws Error(invalid_argument) on all ranks if a batch has begun on some rank, and what
    /// operations throw. A rank without enough memory ends the job with Error(out_of_memory).
    SharingTimes measure_sharing() const;

    /// The name in the options, or the numbered one: the same on all ranks, unique on each.
    const std::string& name() const& noexcept;
    std::string name() && { return std::as_const(*this).name(); }

    /// Whether this rank has marked the parameter's gradient, or one with the same memory, in this
    /// batch. After synchronize(), with OptimizerOptions::uses: whether any rank has.
    bool is_used(std::size_t parameter) const;

    void pause() noexcept;   ///< see NoSync; counted
    void resume() noexcept;  ///< takes one pause() back
    bool is_paused() const noexcept;
    bool is_closed() const noexcept;  ///< all that synchronize() waits for has been sent
    /// Every gradient holds its reduced value; neither a step nor discard() has ended the batch.
    bool is_synchronised() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// The hook that on_gradient() gives to backward: call it with the parameter's index or name when
/// its gradient is final. Never blocks, except for the first comparison of values on a device
/// (OptimizerOptions::check_values). Throws what GradientReducer::mark() throws; step() throws it
/// again. Cheap to copy; valid as long as its optimizer is not moved. One thread at a time.
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
/// always is: every rank calls it, or discard(), once for each batch; all ranks step several
/// optimizers in the same order. One thread at a time.
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

    /// Later marks and steps use this stream: see GradientReducer::set_stream.
    void set_stream(StreamRef stream) { reducer_.set_stream(stream); }

    /// Waits for the averages, then steps. On a device only the stream waits: `step` of the wrapped
    /// optimizer enqueues its work behind the averages, on the stream of the options, and this may
    /// return before any of that is done. If an operation fails after it was enqueued, the job
    /// ends, and the next call throws the error. In a pass that only accumulates, does nothing and
    /// returns false. Throws Error: mismatch, departed or discarded on all ranks, and then no rank
    /// has stepped; what a hook has thrown in this batch (discarded on the other ranks);
    /// invalid_argument if hooks are used and step() is called twice. Also throws what the wrapped
    /// optimizer throws; then call step() again, which only steps, with the same averages, or call
    /// discard().
    ///
    /// Without hooks a second call cannot be told from a first one: it steps again with the same
    /// gradients. Call it once after each backward.
    bool step() {
        return reducer_.finish_pass([this] { optimizer_->step(); });
    }

    /// Call this instead of step() on a rank that cannot go on with this batch. The batch fails on
    /// all ranks, and all go on with the next. See GradientReducer::discard.
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

    /// Measures, between two steps, how much time sharing the gradients would save; see
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
