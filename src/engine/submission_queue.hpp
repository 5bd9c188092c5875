#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "collectives/operation_kind.hpp"
#include "engine/context.hpp"
#include "engine/life_cycle.hpp"
#include "engine/own_tensors.hpp"
#include "engine/pending.hpp"
#include "engine/release_thread.hpp"

namespace guozhuang::engine {

/// The operations of this rank that are not complete: submitted, taken by the thread that drives,
/// or ended. Every pending operation is in a table here until its end, so none is lost.
/// Thread-safe; its lock is held for moments only, and may be taken while driving.
class SubmissionQueue {
public:
    /// Submissions, and a shutdown, that the thread that drives handles next.
    struct Taken {
        Requests operations;
        std::optional<LifeCycle::Shutdown> shutdown;
        bool empty() const noexcept { return operations.empty() && !shutdown; }
    };
    /// Collective operations are listed by name; sends, receives, neutral contributions and the
    /// closing without. Names that callers give keep their rows, at least 16384 of them: submitting
    /// one again allocates nothing.
    struct Tables {
        std::unordered_map<protocol::Name, std::shared_ptr<Pending>, protocol::NameHash,
                           std::equal_to<>>
            named;  ///< null: no operation of the name is pending
        std::unordered_set<std::shared_ptr<Pending>> nameless;
    };

    SubmissionQueue(const Context& context, LifeCycle& life) : context_(context), life_(life) {}

    /// Takes a request, and numbers it if it has no name. Wakes the coordinator, unless the caller
    /// is about to drive, or an earlier submitter has woken it and nothing has been taken since.
    /// Throws Error: duplicate_name, invalid_argument (this rank has joined), or as
    /// LifeCycle::require_open().
    std::shared_ptr<Pending> submit(Request&& request,
                                    std::shared_ptr<ProgressSource> progress_source,
                                    bool caller_waits);
    /// Takes the next number for an operation without a name, which may never be submitted.
    std::uint64_t take_number(OperationKind operation);
    /// Takes the number back from one that is not submitted after all, unless another has got the
    /// next number.
    void return_number(OperationKind operation, std::uint64_t number) noexcept;
    /// Its name.
    std::string numbered_name(OperationKind operation, std::uint64_t number) const;
    /// Adds the neutral contributions of this rank, which it has not submitted itself.
    void add_neutral(const Requests& requests);
    /// Adds the wait for the other ranks to close, unless the log is complete. It is an operation,
    /// so that stalls are reported for it too.
    void add_closing(std::shared_ptr<ProgressSource> progress_source);
    void end_closing() noexcept;

    /// Whether something has been submitted, and is not yet taken.
    bool has_untaken() const;
    /// Moves what has been submitted since the last call into `taken`; a shutdown comes after all
    /// operations. Drops the former contents of `taken`, and reuses its memory.
    void take(Taken& taken);

    /// All ranks have joined (end), or will not (cancel): this rank may submit again. After a join
    /// all ranks number their operations from 1 again, since those that joined early have counted
    /// fewer.
    void end_join();
    void cancel_join();
    std::uint64_t joins() const;  ///< how many times all have joined

    /// Frees the names of operations that are enqueued on a stream: they may be submitted again
    /// before the stream is done.
    void free_names(std::span<const std::shared_ptr<Pending>> requests);
    /// Call it before the first operation on a device. Throws Error(out_of_memory).
    void start_to_release();
    /// Ends the operations; complete_ended() then completes them. Moves from `requests`, because
    /// the last reference must not be dropped with a lock held.
    void end(std::span<std::shared_ptr<Pending>> requests, std::exception_ptr error) noexcept;
    /// Has the ReleaseThread release the owners that an operation on a device has kept.
    void let_go(std::shared_ptr<Owners> owners) noexcept;
    /// Completes operations that have ended; true if there were any. Runs user code. Hands
    /// operations that may free device memory to the ReleaseThread, which completes them.
    bool complete_ended() noexcept;
    /// Returns when all owners have been released and all operations handed over are complete.
    void stop_releases() noexcept;
    /// Ends all operations with the first cause, and returns it. The returned tables must be
    /// destroyed without a lock held.
    std::pair<std::exception_ptr, Tables> fail(const std::exception_ptr& cause);

    bool has_pending() const noexcept { return pending_count() > 0; }
    /// Operations that are submitted and not complete.
    int pending_count() const noexcept { return pending_count_.load(std::memory_order_acquire); }
    /// An operation that uses the owner's memory; null if there is none.
    std::shared_ptr<Pending> find(const OwnsTensors& owner) const;
    /// All operations that somebody waits for.
    Requests all_awaited() const;
    /// Gives an operation copies of its tensors, and takes away the owner's outputs (see
    /// Pending::set_tensors). Throws what copying throws.
    std::shared_ptr<const OwnTensors> copy_tensors(Pending& pending, const OwnsTensors& owner);

private:
    std::shared_ptr<Pending> enter_collective(Request&& request,
                                              std::shared_ptr<ProgressSource> progress_source)
        GUOZHUANG_REQUIRES(mutex_);
    std::shared_ptr<Pending> enter_message(Request&& request,
                                           std::shared_ptr<ProgressSource> progress_source)
        GUOZHUANG_REQUIRES(mutex_);
    void require_not_joined(const Request& request) const GUOZHUANG_REQUIRES(mutex_);
    std::shared_ptr<Pending>& free_row(const Request& request) GUOZHUANG_REQUIRES(mutex_);
    std::string name_of_number(OperationKind operation, std::uint64_t number) const
        GUOZHUANG_REQUIRES(mutex_);
    bool free_name(const std::shared_ptr<Pending>& pending) noexcept GUOZHUANG_REQUIRES(mutex_);
    bool set_ended(Pending& pending, const std::exception_ptr& error) noexcept;
    void complete(Pending& pending) noexcept;

    const Context& context_;
    LifeCycle& life_;
    mutable base::Mutex mutex_;
    Requests operations_ GUOZHUANG_GUARDED_BY(mutex_);  ///< submitted and not yet taken
    /// Whether a submitter has woken the thread that drives for operations not yet taken.
    bool driver_is_woken_ GUOZHUANG_GUARDED_BY(mutex_) = false;
    Tables tables_ GUOZHUANG_GUARDED_BY(mutex_);  ///< from submission to the end
    /// How many operations without a name this rank has submitted since the last join.
    std::map<OperationKind, std::uint64_t> unnamed_ GUOZHUANG_GUARDED_BY(mutex_);
    bool joined_ GUOZHUANG_GUARDED_BY(mutex_) = false;  ///< and waits for the others to join
    std::uint64_t joins_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    std::shared_ptr<Pending> closing_ GUOZHUANG_GUARDED_BY(mutex_);
    /// Once there are this many rows of names, those without a pending operation are dropped.
    std::size_t most_rows_ GUOZHUANG_GUARDED_BY(mutex_) = 16384;
    EndedQueue ended_;
    std::atomic<int> pending_count_{0};      ///< submitted and not complete
    std::optional<ReleaseThread> releases_;  ///< if there are devices; destroyed first
};

}  // namespace guozhuang::engine
