// What an engine does with the entries of the log.
#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <utility>

#include "base/failpoint.hpp"
#include "engine/engine.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {

/// A failure is one at once: nothing moves for it, and what is due before it may take long.
void Engine::accept(protocol::LogEntry entry) {
    auto requests = take_open(entry);
    if (entry.kind == protocol::LogEntry::Kind::fail)
        return finish(requests, error_of(entry, members_));
    if (entry.kind == protocol::LogEntry::Kind::execute) mark(requests, "queue");
    log_.push_back({std::move(entry), std::move(requests)});
}

/// This rank's requests of an entry, which resolves them. A departed rank may have submitted none
/// of what fails for its sake.
Engine::Requests Engine::take_open(const protocol::LogEntry& entry) {
    Requests requests;
    if (entry.kind == protocol::LogEntry::Kind::forget) return requests;
    for (const auto& item : entry.items)
        if (auto found = open_.extract(item.name)) requests.push_back(std::move(found.mapped()));
    return requests;
}

void Engine::execute(Due due) {
    const auto& entry = due.entry;
    switch (entry.kind) {
        case protocol::LogEntry::Kind::execute: run(std::move(due)); break;
        case protocol::LogEntry::Kind::fail:
        case protocol::LogEntry::Kind::forget: break;
        case protocol::LogEntry::Kind::depart:
            point_to_point_.depart(entry.ranks.front(), entry.text);
            break;
        case protocol::LogEntry::Kind::shutdown:
            point_to_point_.fail_unmatched(members_.are_the_world()
                                               ? "every rank has shut down"
                                               : "every rank has left " + members_.name());
            finish_log();
            break;
        case protocol::LogEntry::Kind::join: end_join(std::move(due)); break;
        case protocol::LogEntry::Kind::leave: end_log(entry); break;
    }
}

/// Everybody is active again.
void Engine::end_join(Due due) {
    {
        const base::Lock lock(queue_mutex_);
        joined_ = false;
        ++joins_;
        unnamed_.clear();
    }
    const auto error = due.entry.text.empty() ? nullptr : error_of(due.entry, members_);
    if (!error)
        for (const auto& pending : due.requests)
            pending->result(0).rows = {members_.world_rank(due.entry.ranks.front())};
    finish(due.requests, error);
}

/// What the log has not resolved it never will: every operation would need the rank that has left.
void Engine::end_log(const protocol::LogEntry& leave) {
    left_ = leave;
    {
        const base::Lock lock(queue_mutex_);
        joined_ = false;
    }
    const auto left = leave.ranks.front();
    point_to_point_.leave(left, leave.text);
    if (members_.world_rank(left) != rank_) {
        if (members_.are_the_world())
            base::note_cause(doorbell_,
                             {.rank = left, .text = leave.text, .code = ErrorCode::departed});
        Requests unresolved;
        for (auto& [name, pending] : std::exchange(open_, {}))
            unresolved.push_back(std::move(pending));
        fail_departed(std::move(unresolved));
    }
    somebody_left_ = true;
    finish_log();
}

void Engine::fail_departed(Requests requests) {
    finish(requests, error_of(*left_, members_));
}

void Engine::mark(std::span<const std::shared_ptr<Pending>> requests, std::string_view phase) {
    if (!timeline_->on()) return;
    for (const auto& pending : requests) timeline_->enter(pending.get(), phase);
}

bool Engine::stands_in(const protocol::LogEntry& entry) const {
    return std::ranges::any_of(
        entry.absent, [this](int position) { return members_.world_rank(position) == rank_; });
}

Engine::Requests Engine::stand_ins_for(const protocol::LogEntry& entry) {
    if (use_device_) use_device_(protocol::decode_description(entry.descriptions.front()).device);
    Requests requests;
    for (std::size_t i = 0; i < entry.items.size(); ++i)
        requests.push_back(std::make_shared<Pending>(stand_in_for(entry, i), shared_from_this()));
    const base::Lock lock(queue_mutex_);
    for (const auto& pending : requests) {
        pending_nameless_.insert(pending);
        pending_count_.fetch_add(1);
    }
    return requests;
}

void Engine::run(Due due) {
    const auto& entry = due.entry;
    auto& requests = due.requests;
    if (stands_in(entry)) requests = stand_ins_for(entry);
    if (requests.size() != entry.items.size())
        throw Error(ErrorCode::internal,
                    fmt::format("rank {} was told to execute '{}', which it has not submitted",
                                rank_, entry.items.front().name));
    if (const auto& action = requests.front()->request().action) {
        attempt(requests.front()->request().description->operation, action);
        return finish(requests, nullptr);
    }
    auto bundle = bundle_of(entry, requests, members_, control_.size());
    const auto executor = executor_of(bundle.device);
    mark(requests, "bundle");
    if (executor.stream) return run_on_stream(executor, std::move(bundle), std::move(requests));
    run_on(*executor.backend, bundle, entry.items.front().name);
    finish(requests, nullptr);
}

/// A rank that fails here goes on to say what failed, so what it was running need not be cleared.
void Engine::run_on(Backend& backend, const Bundle& bundle, std::string_view name) {
    const trace::TimelineSlice slice(*timeline_, "bundle", [&] { return facts_of(bundle, set_); });
    activity_.running.write(name_of(bundle.operation), name);
    attempt(bundle.operation, [&] {
        base::pass(base::Failpoint::execute);
        backend.run(bundle);
        base::pass(base::Failpoint::executed);
    });
    activity_.running.clear();
}

/// What fails half-way cannot be finished by the others.
void Engine::attempt(protocol::OperationKind operation, const std::function<void()>& work) {
    try {
        work();
    } catch (...) {
        if (stop_ || leaving_) end_for_leaving();
        const auto error = as_error(std::current_exception(), name_of(operation), rank_);
        tell_others(error);
        std::rethrow_exception(error);
    }
}

Executor Engine::executor_of(DeviceKind kind) {
    const base::Lock lock(queue_mutex_);
    return executors_.at(kind);
}

/// Enqueues the bundle behind what its tensors wait for. The completion is enqueued last, after the
/// handles know the event of the end.
void Engine::run_on_stream(const Executor& executor, Bundle bundle, Requests requests) {
    auto& stream = *executor.stream;
    for (const auto& pending : requests)
        if (const auto& ready = pending->request().ready) stream.wait(ready);
    auto error = std::make_shared<std::exception_ptr>();
    // the bundle points into the requests
    stream.launch([this, backend = executor.backend, bundle = std::move(bundle), requests, error] {
        try {
            run_on(*backend, bundle, requests.front()->request().name);
        } catch (...) {
            *error = std::current_exception();
        }
    });
    const auto done = stream.record();
    for (const auto& pending : requests) pending->set_enqueued(done);
    stream.launch([self = shared_from_this(), requests = std::move(requests), error]() mutable {
        self->finish(requests, std::exchange(*error, nullptr));
    });
    base::ring_local(doorbell_, wait_.audience);
}

}  // namespace guozhuang::engine
