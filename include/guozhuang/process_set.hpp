#pragma once

#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <memory>
#include <string_view>
#include <vector>

namespace guozhuang {

struct ProcessSetState;

/// Some of the ranks of a job, for operations among them. Every operation, plan, optimizer and
/// helper takes a set; by default all ranks. docs/process_sets.md has an example.
///
/// Sets may overlap. Operations of several sets may be pending at once, and each rank may submit
/// them in any order; a blocking call waits for its own set only. Roots, and the peers of send and
/// recv, are ranks of the job; data in rank order, such as the rows of a Result, follows the order
/// of the set. Each set has its own names.
///
/// A value: copies are the same set. Dropping all of them does not remove the set; it ends with its
/// session at the latest. Any thread.
class GUOZHUANG_API ProcessSet {
public:
    /// All ranks of Session::current() at the time of use.
    ProcessSet() noexcept = default;
    /// All ranks of that session, which must outlive this; null: of Session::current(). Implicit,
    /// so that a session can be passed as a set.
    // NOLINTNEXTLINE(google-explicit-constructor)
    ProcessSet(Session* session) noexcept : session_(session) {}

    /// A set of these ranks of the job, in any order. Collective over the job: every rank calls it
    /// with the same ranks, whether it is in the set or not, and all create their sets in the same
    /// order. Blocks until all have called it. Throws Error: invalid_argument for no ranks, or one
    /// that is given twice or does not exist; mismatch on every rank if the ranks given differ;
    /// unavailable on every rank if there are 4094 sets.
    static ProcessSet create(std::vector<int> ranks, Session* session = nullptr);

    /// Removes the set. Collective over the job, in the same order of removals on all ranks. Blocks
    /// until all have called it, and does this rank's part in pending operations of the set
    /// meanwhile. Operations that some rank has not submitted by then fail with Error(departed).
    /// Throws Error: invalid_argument for all ranks of the job, or a set that was removed; what
    /// ended the job.
    void remove();

    /// This process's rank in the set, from 0. Throws Error(invalid_argument) if it is not in it.
    /// This and the functions below send nothing. For a set of all ranks they throw as Session
    /// does.
    int rank() const;
    int size() const;
    bool contains(int rank) const;   ///< a rank of the job
    std::vector<int> ranks() const;  ///< of the job, ascending

    /// Whether both are the same set. Two values for all ranks are equal if they name the same
    /// session, or none.
    friend bool operator==(const ProcessSet&, const ProcessSet&) noexcept = default;

    /// For the library itself, after std::bad_alloc in the middle of work that this rank cannot
    /// begin again alone: ends the job. Throws Error(out_of_memory).
    [[noreturn]] void end_job_without_memory(std::string_view operation) const;
    /// For the library itself; null: all ranks.
    std::shared_ptr<ProcessSetState> state() const noexcept { return state_; }
    /// The session that the constructor was given; null if it was given none.
    Session* session() const noexcept { return session_; }

private:
    explicit ProcessSet(std::shared_ptr<ProcessSetState> state) noexcept
        : state_(std::move(state)) {}

    std::shared_ptr<ProcessSetState> state_;
    Session* session_ = nullptr;
};

}  // namespace guozhuang
