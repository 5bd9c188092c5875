#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <guozhuang/arena.hpp>
#include <guozhuang/operations.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace guozhuang {

/// How a plan reduces. The same on all ranks, except the stream.
struct PlanOptions {
    /// Unique among the live plans of this rank and process set. Empty: numbered in the order in
    /// which this rank makes its unnamed plans.
    std::string name = {};
    /// Names unnamed plans: "#1 plan". The same on all ranks.
    std::string kind = "plan";
    ReduceOp op = ReduceOp::average;
    double prescale = 1;   ///< as in AllreduceOptions
    double postscale = 1;  ///< as in AllreduceOptions
    /// Produces the tensors on its device; the default stream of another device produces the
    /// tensors there.
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< as in Options
};

/// Options of Plan::ready().
struct ReadyOptions {
    /// The caller promises to call wait() or wait_for() at once, which moves the bundle, so no
    /// library thread is woken. Until that call the other ranks may wait for this one, and
    /// Handle::done() makes no progress. Ignored for bundles on devices.
    bool waits_next = false;
    /// The streams on which work on the bundle's tensors was enqueued, all on the tensors' device.
    /// The reduction begins once they have done the work that is on them at the time of the call.
    /// Empty: the plan's stream.
    std::vector<StreamRef> streams = {};
};

/// Tensors that are allreduced repeatedly, in fixed bundles. The ranks negotiate each bundle as a
/// whole, by one id after the first time, and it gives the same bits in every run.
/// DistributedOptimizer uses a plan. Every rank makes the same plans, unnamed ones in the same
/// order; making one sends nothing. A plan ends with its session: ready() then throws
/// Error(not_initialised). One thread at a time.
class GUOZHUANG_API Plan {
public:
    /// The tensors must outlive the plan. Tensors with the same memory (tied weights) are reduced
    /// once, with the last bundle that contains them: make it ready when the memory holds all that
    /// this rank contributes. They must have the same memory on all ranks or on none.
    ///
    /// Throws Error(invalid_argument) for a tensor that operations refuse, a missing or duplicate
    /// tensor name, tensors that overlap, and an op or scales that a dtype does not support;
    /// Error(duplicate_name) if another plan of this rank has the plan's name;
    /// Error(not_initialised).
    explicit Plan(std::vector<std::vector<NamedTensor>> bundles, const PlanOptions& options = {});
    /// The tensors may be freed afterwards, even if bundles are pending (an exception may leave the
    /// training loop). A bundle that waits for other ranks goes on with a copy of this rank's
    /// tensors, so the other ranks get the same results; this waits for a bundle whose data is
    /// moving.
    ~Plan();
    Plan(Plan&&) noexcept;
    Plan& operator=(Plan&&) noexcept;  ///< first ends this plan as ~Plan() does

    /// Says that the tensors of a bundle hold this rank's contribution, so their reduction may
    /// start. Does not block. Throws Error: invalid_argument if there is no such bundle,
    /// duplicate_name if it is pending already, and what submitting throws apart from errors of the
    /// tensors.
    void ready(std::size_t bundle, ReadyOptions options = {});
    /// Waits for every bundle that was made ready since the last wait(). Throws the first error
    /// when all have ended.
    void wait();
    /// The same without waiting for a device: blocks until the bundles on the stream's device are
    /// *enqueued*, and makes the stream wait until they have ended, so later work on it sees the
    /// results. These bundles may be made ready again at once, behind the work that is then on the
    /// plan's stream. Waits for all other bundles, such as those of host tensors, as wait() does.
    /// Throws the first error once all are enqueued or have ended. If a bundle fails after it was
    /// enqueued, the job ends, and later calls throw the error.
    void wait(StreamRef stream);
    /// The same for bundles on several devices: one stream for each. Throws Error(invalid_argument)
    /// for a stream that does not belong to its device.
    void wait(std::span<const StreamRef> streams);

    /// As wait(), with streams or without, but for at most `limit`. Returns false if not all
    /// bundles have ended (or are enqueued) by then; another call waits for the rest.
    bool wait_for(std::chrono::microseconds limit, std::span<const StreamRef> streams = {});
    /// From the next ready(0) on, these must be the same on all ranks, in the same order. Otherwise
    /// bundle 0 fails on all ranks with Error(mismatch), which names the first that differs, both
    /// values and their ranks. Local. Throws Error(invalid_argument) if the bundle's description
    /// becomes too long (32 MiB, with its tensors), or for a text of more than 64 KiB.
    void agree(std::vector<Agreement> agreements);
    /// For a rank that cannot go on in this round: call it instead of making the other bundles
    /// ready. They fail on all ranks with Error(discarded), which names this rank and the reason.
    /// Waits as wait() does, until all ranks have made their bundles ready or discarded them too.
    /// Then the next round begins. Bundles that every rank has made ready are still reduced: to get
    /// all or nothing, hold one bundle back on every rank until nothing can fail any more. Throws
    /// what wait() throws, except Error(discarded) and Error(mismatch).
    void discard(std::string_view reason);
    /// How many times all ranks of the process set have joined (see join()). Local.
    std::uint64_t joins() const;

    /// How many bytes of the tensors share() could open to the other ranks, so that they are
    /// reduced in place: whole pages of private memory, if all ranks of the job take part and are
    /// on one host. Does not check whether the memory is ordinary; share() does. Local.
    std::size_t sharable_bytes() const;

    std::size_t size() const noexcept;          ///< bundles
    const std::string& name() const& noexcept;  ///< the given one, or the numbered one
    std::string name() && { return std::as_const(*this).name(); }

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
