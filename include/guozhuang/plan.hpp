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

/// How a plan reduces. The same on all ranks, but for the stream.
struct PlanOptions {
    /// Unique among the plans of this rank and process set that live. Empty: numbered in the order
    /// in which this rank makes its unnamed plans.
    std::string name = {};
    /// The name of unnamed plans: "#1 plan". The same on all ranks.
    std::string kind = "plan";
    ReduceOp op = ReduceOp::average;
    double prescale = 1;   ///< as in AllreduceOptions
    double postscale = 1;  ///< as in AllreduceOptions
    /// Produces the tensors that are on its device; those on another are produced by its default
    /// stream.
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< as in Options
};

/// How a bundle of a plan is made ready.
struct ReadyOptions {
    /// The caller promises to call wait() or wait_for() at once, which moves the bundle: no thread
    /// of the library is woken for it. Until that call the other ranks may wait for this one, and
    /// asking whether an operation is done moves nothing.
    /// Bundles on devices ignore it.
    bool waits_next = false;
    /// Where work on the bundle's tensors was enqueued, all on their device: the reduction begins
    /// when the work is done that is on each of these streams at the time of the call. None: the
    /// plan's stream.
    std::vector<StreamRef> streams = {};
};

/// Tensors that are allreduced again and again, in fixed bundles. Each bundle is negotiated as a
/// whole, by one id after the first time, and has the same bits in every run. DistributedOptimizer
/// uses one. Every rank makes the same plans, unnamed ones in the same order; making one sends
/// nothing. When the session ends, so does the plan: ready() then throws Error(not_initialised).
/// One thread at a time.
class GUOZHUANG_API Plan {
public:
    /// The tensors must outlive the plan. Tensors with the same memory (tied weights), on all ranks
    /// or on none, are reduced once: with the last of the bundles that have them, which is ready
    /// when the memory holds all that this rank contributes.
    ///
    /// Throws Error(invalid_argument) for a tensor that operations refuse, one without a name or
    /// with one that another has, for tensors that overlap, and for an op or scales that a dtype
    /// does not have; Error(duplicate_name) if another plan of this rank has the plan's name;
    /// Error(not_initialised).
    explicit Plan(std::vector<std::vector<NamedTensor>> bundles, const PlanOptions& options = {});
    /// The tensors may be freed afterwards, even if bundles are pending (an exception may leave the
    /// training loop). A bundle that waits for other ranks goes on with a copy of this rank's
    /// tensors, so the other ranks get the same results; a bundle whose data moves is waited for.
    ~Plan();
    Plan(Plan&&) noexcept;
    Plan& operator=(Plan&&) noexcept;  ///< the plan that was here ends as in ~Plan

    /// Says that the tensors of a bundle hold this rank's contribution, so their reduction may
    /// start. Does not block. Throws Error: invalid_argument if there is no such bundle,
    /// duplicate_name if it is pending already, and what submitting throws apart from errors of the
    /// tensors.
    void ready(std::size_t bundle, ReadyOptions options = {});
    /// Waits for every bundle that was made ready since the last wait(). Throws the first error
    /// when all have ended.
    void wait();
    /// The same without waiting for a device: blocks until the bundles on the stream's device are
    /// *enqueued*, and makes the stream wait for their ends, so later work on it sees the results.
    /// These bundles may be made ready again at once, behind what is then on the plan's stream. The
    /// other bundles, those of host tensors above all, are waited for as by wait(). Throws the
    /// first error, when all are enqueued or have ended. A bundle that fails after it was enqueued
    /// ends the job, which later calls throw.
    void wait(StreamRef stream);
    /// The same for bundles on several devices: a stream for each. Throws Error(invalid_argument)
    /// for a stream that is not of its device.
    void wait(std::span<const StreamRef> streams);

    /// As wait(), with streams or without, for at most `limit`; false if not all have ended (or are
    /// enqueued) by then: another call goes on with the rest.
    bool wait_for(std::chrono::microseconds limit, std::span<const StreamRef> streams = {});
    /// From the next ready(0) on, these must be the same on all ranks, in the same order. Otherwise
    /// bundle 0 fails on all with Error(mismatch), which names the first that differs, both values
    /// and their ranks. Local. Throws Error(invalid_argument) if the bundle's description becomes
    /// too long (32 MiB, with its tensors), or for a text of more than 64 KiB.
    void agree(std::vector<Agreement> agreements);
    /// For a rank that cannot go on in this round, instead of making its other bundles ready. These
    /// fail on all ranks with Error(discarded), which names this rank and the reason. Waits for all
    /// bundles, as wait() does: until all ranks have made theirs ready or discarded them too. Then
    /// the next round begins. Bundles that every rank has made ready are reduced all the same: to
    /// get all or nothing, keep one back on every rank until nothing can fail any more. Throws what
    /// wait() throws, but neither Error(discarded) nor Error(mismatch).
    void discard(std::string_view reason);
    /// How often all ranks of its process set have joined (see join()). Local.
    std::uint64_t joins() const;

    /// Bytes of its tensors that share() could open to the other ranks, so that they would be
    /// reduced where they are: whole pages of private memory, where all ranks of the job take part
    /// and are on one host. Whether that memory is ordinary, share() finds out. Local.
    std::size_t sharable_bytes() const;

    std::size_t size() const noexcept;          ///< bundles
    const std::string& name() const& noexcept;  ///< the given one, or the numbered one
    std::string name() && { return std::as_const(*this).name(); }

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
