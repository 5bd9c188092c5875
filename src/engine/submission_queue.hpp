#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "engine/context.hpp"
#include "engine/life_cycle.hpp"
#include "engine/pending.hpp"
#include "engine/point_to_point.hpp"
#include "protocol/operation.hpp"

namespace guozhuang::engine {

using Requests = std::vector<std::shared_ptr<Pending>>;

/// What callers of this rank have submitted and what is not complete: queued for whoever drives,
/// then under way, then ended. Whatever is lost on its way, here it is found. Thread-safe; its lock
/// is held for moments only, and may be taken while driving.
class SubmissionQueue {
public:
    /// What whoever drives has to deal with next.
    struct Taken {
        Requests operations;
        std::vector<P2pOperation> p2p_operations;
        std::optional<LifeCycle::Shutdown> shutdown;
        bool empty() const noexcept {
            return operations.empty() && p2p_operations.empty() && !shutdown;
        }
    };
    /// By name; and those of point to point, neutral contributions and the closing.
    struct Tables {
        std::unordered_map<std::string, std::shared_ptr<Pending>> named;
        std::unordered_set<std::shared_ptr<Pending>> nameless;
    };

    SubmissionQueue(const Context& context, LifeCycle& life) : context_(context), life_(life) {}

    /// Takes a request; numbers it if it has no name. Throws Error: duplicate_name,
    /// invalid_argument (this rank has joined), or as LifeCycle::require_open().
    std::shared_ptr<Pending> submit(Request request,
                                    std::shared_ptr<ProgressSource> progress_source);
    /// The same for a point-to-point operation. The request's name is for people only.
    std::shared_ptr<Pending> submit(Request request, const Route& route,
                                    std::shared_ptr<ProgressSource> progress_source);
    /// What this rank has not submitted and takes part in all the same.
    void add_neutral(const Requests& requests);
    /// The wait for the others to close, unless their log is complete: they may keep this rank
    /// waiting, as they may with an operation.
    void add_closing(std::shared_ptr<ProgressSource> progress_source);
    void end_closing() noexcept;

    /// What has been submitted since the last call, and a shutdown behind it.
    Taken take();

    /// All ranks have joined, or none will: everybody is active again. Ranks that joined early have
    /// counted less than the others, so after a join all number anew.
    void end_join();
    void cancel_join();
    std::uint64_t joins() const;  ///< how often all have joined

    /// The end of these, as the log or a backend has it; complete_ended() makes it known to those
    /// who wait. Takes them: the last owner must not be somebody who holds a lock.
    void end(std::span<std::shared_ptr<Pending>> requests, std::exception_ptr error) noexcept;
    /// Completes what has ended; true if there was anything. Runs the user's code.
    bool complete_ended() noexcept;
    /// Everything ends with the cause, which is returned if it is the first. What it returns is to
    /// be let go without a lock.
    std::pair<std::exception_ptr, Tables> fail(const std::exception_ptr& cause);

    bool has_pending() const noexcept { return pending_count_.load(std::memory_order_acquire) > 0; }
    /// Null if there is none.
    std::shared_ptr<Pending> find(const std::function<bool(const Request&)>& concerns) const;
    /// All that somebody waits for.
    Requests all_awaited() const;
    /// The operation goes on with other tensors (see Pending::set_tensors).
    void replace_tensors(Pending& pending, SharedTensors tensors,
                         std::shared_ptr<device::Event> ready, std::shared_ptr<void> owner);

private:
    void require_not_joined(const Request& request) const GUOZHUANG_REQUIRES(mutex_);
    void require_new_name(const Request& request) const GUOZHUANG_REQUIRES(mutex_);
    void number(Request& request, std::uint64_t number) const GUOZHUANG_REQUIRES(mutex_);
    template <class Table, class Entry, class Queue, class Element>
    void enter(Table& table, Entry entry, Queue& queue, Element element) GUOZHUANG_REQUIRES(mutex_);
    bool set_ended(Pending& pending, const std::exception_ptr& error) noexcept;

    const Context& context_;
    LifeCycle& life_;
    mutable base::Mutex mutex_;
    Requests operations_ GUOZHUANG_GUARDED_BY(mutex_);  ///< submitted and not yet taken
    std::vector<P2pOperation> p2p_operations_ GUOZHUANG_GUARDED_BY(mutex_);  ///< likewise
    Tables tables_ GUOZHUANG_GUARDED_BY(mutex_);  ///< from submission to the end
    /// how many so far, since all joined
    std::map<protocol::OperationKind, std::uint64_t> unnamed_ GUOZHUANG_GUARDED_BY(mutex_);
    bool joined_ GUOZHUANG_GUARDED_BY(mutex_) = false;  ///< and waits for the others to join
    std::uint64_t joins_ GUOZHUANG_GUARDED_BY(mutex_) = 0;
    std::shared_ptr<Pending> closing_ GUOZHUANG_GUARDED_BY(mutex_);
    EndedQueue ended_;
    std::atomic<int> pending_count_{0};  ///< of those that are not complete
};

}  // namespace guozhuang::engine
