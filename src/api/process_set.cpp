#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/handle.hpp>
#include <guozhuang/process_set.hpp>
#include <new>
#include <utility>

#include "api/process_set_state.hpp"
#include "base/process.hpp"

namespace guozhuang {
namespace {

[[noreturn]] void refuse(const std::string& text, std::vector<int> ranks = {}) {
    throw Error(ErrorCode::invalid_argument, text,
                {.operation = "process set", .ranks = std::move(ranks)});
}

void check(std::vector<int> sorted, int size) {
    if (sorted.empty()) refuse("process set: it has no ranks");
    for (const int rank : sorted)
        if (rank < 0 || rank >= size)
            refuse(fmt::format("process set {}: rank {} does not exist; there are ranks 0 to {}",
                               fmt::join(sorted, ","), rank, size - 1));
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
        refuse(
            fmt::format("process set {}: rank {} is in it twice", fmt::join(sorted, ","), *twice));
}

/// Submits the request to the world's log, and waits until this rank has executed it.
void agree(Runtime& runtime, engine::Request request) {
    Handle(runtime.world()->engine().submit(std::move(request), true)).wait();
}

}  // namespace

std::shared_ptr<Runtime> api::runtime_of(Session* session) {
    return (session != nullptr ? *session : Session::current()).runtime();
}

std::shared_ptr<SetRuntime> api::set_runtime_of(Session* session, const ProcessSet& set) {
    const auto& state = set.state();
    if (!state) return runtime_of(set.session() != nullptr ? set.session() : session)->world();
    const auto name = [&] { return state->group_ranks().name(); };
    if (session != nullptr && session->runtime() != state->runtime.lock())
        refuse(fmt::format("{} belongs to another session than the one in the options", name()));
    if (state->removed)
        refuse(fmt::format("{} has been removed: it takes no more operations", name()));
    if (!state->set_runtime) {
        const auto runtime = state->runtime.lock();
        if (!runtime)
            throw Error(ErrorCode::not_initialised,
                        "this session has been closed: it takes no more operations");
        const int rank = runtime->transport().rank();
        refuse(fmt::format("rank {} is not in {}", rank, name()), {rank});
    }
    return state->set_runtime;
}

void api::end_job_without_memory(SetRuntime& set, std::string_view operation) {
    auto cause = std::current_exception();
    try {
        cause = std::make_exception_ptr(
            Error(ErrorCode::out_of_memory, fmt::format("{}: not enough memory", operation),
                  {.operation = std::string(operation), .ranks = {set.transport().rank()}}));
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then this is the cause
    }
    set.engine().end(cause);
}

void ProcessSet::end_job_without_memory(std::string_view operation) const {
    api::end_job_without_memory(*api::set_runtime_of(nullptr, *this), operation);
}

ProcessSet ProcessSet::create(std::vector<int> ranks, Session* session) {
    const auto runtime = api::runtime_of(session);
    if (runtime->transport().wait_settings().turn_scheduler != nullptr)
        throw Error(ErrorCode::unavailable,
                    "process set: ranks that take turns have none, because a set needs a thread of "
                    "its own");
    std::ranges::sort(ranks);
    check(ranks, runtime->transport().size());
    auto state = std::make_shared<ProcessSetState>(runtime, std::move(ranks));
    const auto open = [sets = runtime->sets(), state] {
        auto opened = sets->open(state->ranks);
        if (!opened) return;
        state->id = opened->id;
        state->set_runtime = std::move(opened->set_runtime);
    };
    agree(*runtime, {.description = protocol::share(protocol::Description{
                         .operation = OperationKind::create_process_set, .ranks = state->ranks}),
                     .action = open});
    if (state->id.context == SetId{}.context)
        throw Error(
            ErrorCode::unavailable,
            "process set: there are as many as there can be; remove those that are not needed");
    return ProcessSet(std::move(state));
}

void ProcessSet::remove() {
    base::refuse_forked();
    if (!state_) refuse("process set: all ranks of the job are no set that can be removed");
    const auto name = state_->group_ranks().name();
    if (state_->removed.exchange(true)) refuse(fmt::format("{} has been removed before", name));
    const auto runtime = state_->runtime.lock();
    if (!runtime)
        throw Error(ErrorCode::not_initialised, fmt::format("{} has ended with its session", name));
    try {
        if (state_->set_runtime) state_->set_runtime->close("it has removed it");
        agree(*runtime,
              {.name = fmt::format("#{} {}", state_->id.epoch, name),
               .named = false,
               .description = protocol::share(
                   protocol::Description{.operation = OperationKind::remove_process_set}),
               .action = [sets = runtime->sets(), id = state_->id] { sets->release(id); }});
    } catch (...) {
        state_->removed = false;  // the caller may try again, for instance if a rank had joined
        throw;
    }
}

int ProcessSet::rank() const {
    if (!state_) return (session_ != nullptr ? *session_ : Session::current()).rank();
    if (!state_->set_runtime)
        refuse(fmt::format("this rank is not in {}", state_->group_ranks().name()));
    return state_->set_runtime->group_rank();
}

int ProcessSet::size() const {
    if (!state_) return (session_ != nullptr ? *session_ : Session::current()).size();
    return static_cast<int>(state_->ranks.size());
}

bool ProcessSet::contains(int rank) const {
    if (!state_) return rank >= 0 && rank < size();
    return std::ranges::binary_search(state_->ranks, rank);
}

std::vector<int> ProcessSet::ranks() const {
    return state_ ? state_->ranks : topology::all_ranks(size());
}

}  // namespace guozhuang
