#pragma once

#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <memory>
#include <vector>

namespace guozhuang {

struct ProcessSetState;

/// Some of the ranks of a job, for operations among them alone: every operation, plan, optimizer
/// and helper takes one. By default all ranks. docs/process_sets.md has an example.
///
/// Sets may overlap, and operations of several sets be on their way at once, begun by each member
/// in an order of its own; only a call that blocks waits for its own set. Roots, and the peers of
/// send and recv, are ranks of the job; whatever is in order of ranks, such as the rows of a
/// Result, is in order of the set's. Names are told apart by set.
///
/// A value: copies are the same set. Dropping all of them does not remove the set, which ends with
/// its session at the latest. Any thread.
class GUOZHUANG_API ProcessSet {
public:
    /// All ranks of Session::current(), asked for when it is used.
    ProcessSet() noexcept = default;
    /// All ranks of that session, which outlives this value; null: of Session::current(). Implicit,
    /// so that what takes a set takes a session.
    // NOLINTNEXTLINE(google-explicit-constructor)
    ProcessSet(Session* session) noexcept : session_(session) {}

    /// A set of these ranks of the job, in whatever order. Collective over the job: every rank
    /// calls it, whether it is in the set or not, with the same ranks; of several creations each
    /// rank makes the same sequence. Blocks until all have. Throws Error: invalid_argument for no
    /// ranks, one twice, or one that does not exist; mismatch on every rank if they differ;
    /// unavailable on every rank if there are 4094 sets already.
    static ProcessSet create(std::vector<int> ranks, Session* session = nullptr);

    /// Ends the set. Collective over the job; of several removals each rank makes the same
    /// sequence. Blocks until all ranks have called it, meanwhile doing its part in operations of
    /// the set that are pending; those that another member never submitted fail with
    /// Error(departed). Throws Error: invalid_argument for all ranks of the job, or a set that has
    /// been removed; what ended the job.
    void remove();

    /// This process's place in the set, from 0. Throws Error(invalid_argument) if it is not in it.
    /// Local, as all that follow; for all ranks of a session they throw what the session does.
    int rank() const;
    int size() const;
    bool contains(int rank) const;   ///< a rank of the job
    std::vector<int> ranks() const;  ///< of the job, ascending

    /// The same set; two values of all ranks are equal if they name the same session, or both none.
    friend bool operator==(const ProcessSet&, const ProcessSet&) noexcept = default;

    /// For the library itself; null: all ranks.
    const std::shared_ptr<ProcessSetState>& state() const noexcept { return state_; }
    /// The session that the constructor was given; null if it was given none.
    Session* session() const noexcept { return session_; }

private:
    explicit ProcessSet(std::shared_ptr<ProcessSetState> state) noexcept
        : state_(std::move(state)) {}

    std::shared_ptr<ProcessSetState> state_;
    Session* session_ = nullptr;
};

}  // namespace guozhuang
