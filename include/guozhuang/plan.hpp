#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/arena.hpp>
#include <guozhuang/operations.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace guozhuang {

/// How a plan reduces; the same on all ranks, apart from the stream.
struct PlanOptions {
    /// Unique among the plans of this rank and process set that live. Empty: numbered in the order
    /// in which this rank makes its unnamed plans there.
    std::string name = {};
    /// The word for plans without a name: "#1 plan". The same on all ranks.
    std::string kind = "plan";
    ReduceOp op = ReduceOp::average;
    double prescale = 1;                   ///< as in AllreduceOptions
    double postscale = 1;                  ///< as in AllreduceOptions
    std::optional<StreamRef> stream = {};  ///< that produces the tensors, for tensors on a device
    Session* session = nullptr;            ///< as in Options
    ProcessSet process_set = {};           ///< as in Options
};

/// Tensors that are allreduced again and again in fixed bundles: each bundle is negotiated as a
/// whole, by one id after the first time, and gives the same bits on every run. What
/// DistributedOptimizer stands on. Every rank makes the same plans, unnamed ones in the same order;
/// making one sends nothing. It ends with its session: afterwards ready() throws
/// Error(not_initialised). One thread at a time.
class GUOZHUANG_API Plan {
public:
    /// The tensors must live as long as the plan. Tensors that are the same memory (of tied
    /// weights), on all ranks or on none, are reduced once: with the last of the bundles that have
    /// them, which is to be ready when the memory holds all that this rank contributes. Throws
    /// Error(invalid_argument) for a tensor that is unusable (as the submission of an operation
    /// would), without a name or with one that another has, for tensors that overlap, and for an op
    /// or scales that a dtype does not have; Error(duplicate_name) if another plan of this rank has
    /// the plan's name, Error(not_initialised).
    explicit Plan(std::vector<std::vector<NamedTensor>> bundles, PlanOptions options = {});
    /// The tensors are free afterwards, also while the plan's bundles are pending, as when an
    /// exception leaves the training loop. A bundle that waits for other ranks goes on with a copy
    /// of this rank's tensors, so that the other ranks get what they would have got; a bundle whose
    /// data moves is waited for.
    ~Plan();
    Plan(Plan&&) noexcept;
    Plan& operator=(Plan&&) noexcept;  ///< the plan that was here ends as in ~Plan

    /// The tensors of a bundle hold this rank's contribution: their reduction may start. Does not
    /// block. Throws Error: invalid_argument if there is no such bundle, duplicate_name if it is on
    /// its way already, and what a submission may throw that has nothing to do with its tensors.
    void ready(std::size_t bundle);
    /// Waits for every bundle that was made ready since the last wait(); throws the first error
    /// after all are settled.
    void wait();

    /// From the next ready(0) on, all this must be the same on all ranks, in the same order:
    /// otherwise bundle 0 fails on all of them with Error(mismatch), which names the first that
    /// differs, both values and their ranks. Local. Throws Error(invalid_argument) for more than a
    /// bundle can be described by (32 MiB, with its tensors), or a text of more than 64 KiB.
    void agree(std::vector<Agreement> agreements);
    /// For a rank that cannot go on in this round: the bundles that it has not made ready fail on
    /// all ranks with Error(discarded), which names it and the reason. To be called in place of
    /// making them ready; waits as wait() does for all bundles, so until all ranks have made theirs
    /// ready or discarded them too, and the next round begins. Bundles that every rank has made
    /// ready are reduced all the same: who wants all or nothing keeps one back on every rank until
    /// nothing can fail any more. Throws what wait() does, but neither Error(discarded) nor
    /// Error(mismatch).
    void discard(std::string_view reason);
    /// How often all ranks of its process set have joined (see join()). Local.
    std::uint64_t joins() const;

    std::size_t size() const noexcept;         ///< bundles
    const std::string& name() const noexcept;  ///< the given one, or the numbered one

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
