#include "engine/submission_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <iterator>

#include "base/error_text.hpp"
#include "base/failpoint.hpp"
#include "base/keep_for_ever.hpp"
#include "base/process.hpp"
#include "engine/execution.hpp"
#include "engine/outputs.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {
void SubmissionQueue::require_not_joined(const Request& request) const {
    if (!joined_) return;
    const std::string operation(request.operation());
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: this rank has joined in {} and takes part in everything there "
                            "without submitting it, until all ranks have "
                            "joined; wait for that first",
                            request.label(), context_.group_ranks.name()),
                {.tensor = request.name, .operation = operation, .ranks = {context_.rank}});
}

/// The row of the request's name. Throws Error(duplicate_name) if an operation of that name is
/// pending.
std::shared_ptr<Pending>& SubmissionQueue::free_row(const Request& request) {
    auto& named = tables_.named;
    auto found = named.find(request.name);
    if (found == named.end()) {
        if (named.size() >= most_rows_) {
            std::erase_if(named, [](const auto& row) { return row.second == nullptr; });
            most_rows_ = std::max(most_rows_, 2 * named.size());
        }
        found = named.emplace(request.name, nullptr).first;
    }
    if (!found->second) return found->second;
    const std::string operation(request.operation());
    throw Error(ErrorCode::duplicate_name,
                fmt::format("{} {}: an operation of that name is still pending on this "
                            "rank; wait for it or choose another name",
                            operation, base::quote(request.name.text())),
                {.tensor = request.name, .operation = operation, .ranks = {context_.rank}});
}

std::string SubmissionQueue::name_of_number(OperationKind operation, std::uint64_t number) const {
    auto name = fmt::format("#{} {}", number, name_of(operation));
    if (joins_ > 0) name += fmt::format(" after {} join{}", joins_, joins_ == 1 ? "" : "s");
    return name;
}

/// Frees the operation's name for the next; false if it holds none.
bool SubmissionQueue::free_name(const std::shared_ptr<Pending>& pending) noexcept {
    auto& named = tables_.named;
    const auto& request = pending->request();
    const auto found = named.find(request.name);
    if (found == named.end() || found->second != pending) return false;
    if (request.named)
        found->second = nullptr;
    else
        named.erase(found);
    return true;
}

std::shared_ptr<Pending> SubmissionQueue::submit(Request&& request,
                                                 std::shared_ptr<ProgressSource> progress_source,
                                                 bool caller_waits) {
    base::refuse_forked();
    base::pass(base::Failpoint::submit);
    std::shared_ptr<Pending> pending;
    bool wakes_driver = false;
    {
        const base::Lock lock(mutex_);
        life_.require_open(request, context_.group_ranks);
        pending = request.kind == Request::Kind::point_to_point
                      ? enter_message(std::move(request), std::move(progress_source))
                      : enter_collective(std::move(request), std::move(progress_source));
        wakes_driver = !caller_waits && !std::exchange(driver_is_woken_, true);
    }
    if (wakes_driver) context_.ring(base::Sleepers::idle);
    return pending;
}

std::shared_ptr<Pending> SubmissionQueue::enter_collective(
    Request&& request, std::shared_ptr<ProgressSource> progress_source) {
    require_not_joined(request);
    const auto operation = request.description->operation;
    auto& unnamed = unnamed_[operation];
    const bool numbered = request.name.text().empty();
    if (numbered) {
        request.named = false;
        request.name = name_of_number(operation, request.number > 0 ? request.number : unnamed + 1);
    }
    auto& row = free_row(request);
    auto& activity = context_.activity;
    write_operation(activity.submitted, name_of(operation), request.name.text(),
                    context_.group_ranks);
    auto pending = std::make_shared<Pending>(std::move(request), std::move(progress_source));
    operations_.push_back(pending);
    row = pending;
    pending_count_.fetch_add(1);
    if (operation == OperationKind::join) joined_ = true;
    activity.last_pending = pending.get();
    // Counted last, since ranks must count alike, and an operation that could not be submitted does
    // not count. One that has taken a number before (take_number) has been counted.
    if (numbered && pending->request().number == 0) ++unnamed;
    context_.timeline->begin(pending.get(), pending->request().name.text(), "negotiate",
                             [&] { return facts_of(pending->request(), context_.set); });
    return pending;
}

std::shared_ptr<Pending> SubmissionQueue::enter_message(
    Request&& request, std::shared_ptr<ProgressSource> progress_source) {
    context_.activity.submitted.write(request.name.text());
    auto pending = std::make_shared<Pending>(std::move(request), std::move(progress_source));
    const auto entered = tables_.nameless.insert(pending).first;
    try {
        operations_.push_back(pending);
    } catch (...) {  // there is no memory
        tables_.nameless.erase(entered);
        throw;
    }
    pending_count_.fetch_add(1);
    context_.timeline->begin(pending.get(), pending->request().name.text(), "message", [&] {
        return trace::TimelineFacts{.bytes = pending->request().tensors.front().bytes(),
                                    .set = context_.set};
    });
    return pending;
}

std::uint64_t SubmissionQueue::take_number(OperationKind operation) {
    const base::Lock lock(mutex_);
    return ++unnamed_[operation];
}

void SubmissionQueue::return_number(OperationKind operation, std::uint64_t number) noexcept {
    const base::Lock lock(mutex_);
    const auto last = unnamed_.find(operation);
    if (last != unnamed_.end() && last->second == number) --last->second;
}

std::string SubmissionQueue::numbered_name(OperationKind operation, std::uint64_t number) const {
    const base::Lock lock(mutex_);
    return name_of_number(operation, number);
}

void SubmissionQueue::add_neutral(const Requests& requests) {
    const base::Lock lock(mutex_);
    for (const auto& pending : requests) {
        tables_.nameless.insert(pending);
        pending_count_.fetch_add(1);
    }
}

void SubmissionQueue::add_closing(std::shared_ptr<ProgressSource> progress_source) {
    auto closing = std::make_shared<Pending>(Request{.kind = Request::Kind::closing},
                                             std::move(progress_source));
    const base::Lock lock(mutex_);
    if (life_.is_over() || closing_) return;
    tables_.nameless.insert(closing);
    pending_count_.fetch_add(1);
    closing_ = std::move(closing);
}

void SubmissionQueue::end_closing() noexcept {
    std::shared_ptr<Pending> closing;
    {
        const base::Lock lock(mutex_);
        closing.swap(closing_);
    }
    if (closing) end(std::span(&closing, 1), nullptr);
}

bool SubmissionQueue::has_untaken() const {
    const base::Lock lock(mutex_);
    return !operations_.empty();
}

void SubmissionQueue::take(Taken& taken) {
    taken.operations.clear();
    const base::Lock lock(mutex_);
    driver_is_woken_ = false;
    taken.operations.swap(operations_);
    taken.shutdown = life_.take_shutdown();  // nothing is submitted after it
}

void SubmissionQueue::end_join() {
    const base::Lock lock(mutex_);
    joined_ = false;
    ++joins_;
    unnamed_.clear();
}

void SubmissionQueue::cancel_join() {
    const base::Lock lock(mutex_);
    joined_ = false;
}

std::uint64_t SubmissionQueue::joins() const {
    const base::Lock lock(mutex_);
    return joins_;
}

void SubmissionQueue::free_names(std::span<const std::shared_ptr<Pending>> requests) {
    const base::Lock lock(mutex_);
    for (const auto& pending : requests) {
        const auto [entered, is_new] = tables_.nameless.insert(pending);  // first: it may throw
        if (!free_name(pending) && is_new) tables_.nameless.erase(entered);
    }
}

void SubmissionQueue::end(std::span<std::shared_ptr<Pending>> requests,
                          std::exception_ptr error) noexcept {
    if (error) life_.note_failure(error);
    {
        std::size_t ended = 0;
        const base::Lock lock(mutex_);
        for (auto& pending : requests) {
            if (!free_name(pending)) tables_.nameless.erase(pending);
            if (set_ended(*pending, error)) std::swap(requests[ended++], pending);
        }
        error = nullptr;  // only the operations own it now
        for (auto& pending : requests.first(ended)) ended_.push(std::move(pending));
    }
    context_.ring(base::Sleepers::behind);
}

bool SubmissionQueue::set_ended(Pending& pending, const std::exception_ptr& error) noexcept {
    const auto own = error ? for_operation(error, pending.request(), life_.memory_is_on_loan())
                           : output_mismatch(pending, context_);
    if (!pending.set_ended(own)) return false;
    const void* last = &pending;
    context_.activity.last_pending.compare_exchange_strong(last, nullptr);
    context_.timeline->end(&pending, own != nullptr);
    return true;
}

void SubmissionQueue::start_to_release() {
    if (!releases_) releases_.emplace([this](Pending& pending) { complete(pending); });
}

void SubmissionQueue::stop_releases() noexcept {
    if (releases_) releases_->stop();
}

void SubmissionQueue::let_go(std::shared_ptr<Owners> owners) noexcept {
    releases_->let_go(std::move(owners));
}

bool SubmissionQueue::complete_ended() noexcept {
    bool any = false;
    while (auto pending = ended_.pop()) {
        if (pending->may_free_device_memory())
            releases_->complete(std::move(pending));
        else
            complete(*pending);
        any = true;
    }
    return any;
}

void SubmissionQueue::complete(Pending& pending) noexcept {
    pending.set_complete(life_.memory_is_on_loan());
    pending_count_.fetch_sub(1);
    context_.ring(base::Sleepers::behind);
}

std::pair<std::exception_ptr, SubmissionQueue::Tables> SubmissionQueue::fail(
    const std::exception_ptr& cause) {
    Tables tables;
    const base::Lock lock(mutex_);
    const auto first = life_.fail(cause);
    operations_.clear();  // all are in the tables, too
    closing_ = nullptr;
    std::swap(tables, tables_);
    const auto note_end = [&](const std::shared_ptr<Pending>& pending) {
        pending->take_staged();  // handles may outlive the device's executor
        if (set_ended(*pending, first)) ended_.push(pending);
    };
    for (const auto& [name, pending] : tables.named)
        if (pending) note_end(pending);
    for (const auto& pending : tables.nameless) note_end(pending);
    // Keeps the operations, and all that they keep alive, for ever.
    if (life_.memory_is_on_loan()) base::keep_for_ever(std::exchange(tables, {}));
    return {first, std::move(tables)};
}

std::shared_ptr<Pending> SubmissionQueue::find(const OwnsTensors& owner) const {
    const base::Lock lock(mutex_);
    for (const auto& [name, pending] : tables_.named)
        if (pending && pending->request().uses_memory_of(owner)) return pending;
    for (const auto& pending : tables_.nameless)
        if (pending->request().uses_memory_of(owner)) return pending;
    return nullptr;
}

Requests SubmissionQueue::all_awaited() const {
    Requests awaited;
    const base::Lock lock(mutex_);
    for (const auto& [name, pending] : tables_.named)
        if (pending) awaited.push_back(pending);
    std::ranges::copy_if(tables_.nameless, std::back_inserter(awaited), [](const auto& each) {
        return each->request().kind != Request::Kind::neutral;
    });
    return awaited;
}

std::shared_ptr<const OwnTensors> SubmissionQueue::copy_tensors(Pending& pending,
                                                                const OwnsTensors& owner) {
    const auto& request = pending.request();
    auto copies = std::make_shared<OwnTensors>(request);
    auto outputs = outputs_without(request.outputs, owner);
    SharedTensors tensors(copies->tensors());
    const base::Lock lock(mutex_);  // find() reads them
    pending.set_outputs(std::move(outputs));
    pending.set_tensors(std::move(tensors), copies->filled(), copies);
    return copies;
}

}  // namespace guozhuang::engine
