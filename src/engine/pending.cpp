#include "engine/pending.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>

#include "base/error_text.hpp"
#include "base/log.hpp"

namespace guozhuang::engine {

std::exception_ptr for_operation(const std::exception_ptr& error, const Request& request,
                                 bool memory_on_loan) noexcept try {
    std::rethrow_exception(error);
} catch (const Error& cause) {
    const bool is_of_a_rank =
        cause.code() == ErrorCode::rank_died || cause.code() == ErrorCode::departed;
    const bool waits = is_of_a_rank && cause.operation().empty();
    if (!waits && !memory_on_loan) return error;
    try {
        std::string text = cause.what();
        if (waits) text += fmt::format("; {} waits for it", request.label());
        if (memory_on_loan)
            text +=
                "; MPI may still use the memory of operations that were pending: neither free it "
                "nor use it again";
        Error::Facts facts{
            .tensor = cause.tensor(), .operation = cause.operation(), .ranks = cause.ranks()};
        if (waits)
            facts = {.tensor = request.name,
                     .operation = std::string(request.operation()),
                     .ranks = cause.ranks()};
        if (cause.code() == ErrorCode::rank_died)
            return std::make_exception_ptr(RankDied(text, facts));
        return std::make_exception_ptr(Error(cause.code(), text, facts));
    } catch (...) {
        return error;
    }
} catch (...) {
    return error;
}

std::string_view Request::operation() const noexcept {
    switch (kind) {
        case Kind::point_to_point: return "send/recv";
        case Kind::closing: return "close";
        default: return name_of(description->operation);
    }
}

std::string Request::label() const {
    if (kind == Kind::point_to_point) return name.text();
    if (!description->ranks.empty())
        return fmt::format("{} {} of {}", operation(), base::quote(name.text()),
                           base::list_ranks(description->ranks));
    return name.text().empty() ? std::string(operation())
                               : fmt::format("{} {}", operation(), base::quote(name.text()));
}

Pending::Pending(Request&& request, std::shared_ptr<ProgressSource> progress_source)
    : request_(std::move(request)), progress_source_(std::move(progress_source)) {
    const auto operation = request_.description->operation;
    if (row_of(operation).has_rows) {
        results_.resize(request_.tensors.size());
        set_outputs(request_.outputs);
    } else if (operation == OperationKind::join) {
        results_.resize(1);
    }
}

Pending::~Pending() {
    const bool is_callers = request_.kind == Request::Kind::collective ||
                            request_.kind == Request::Kind::point_to_point;
    if (!error_ || !is_callers || error_seen_.load(std::memory_order_relaxed)) return;
    const auto say = [this](bool is_known, const char* what) {
        base::log(is_known || dropped_by_exception_ ? LogLevel::debug : LogLevel::error,
                  "nobody waited for an operation that failed: {}", what);
    };
    try {
        std::rethrow_exception(error_);
    } catch (const Error& error) {
        // The process logs the end of the job once, for all operations.
        say(error.code() == ErrorCode::rank_died || error.code() == ErrorCode::timeout,
            error.what());
    } catch (const std::exception& error) {  // there was no memory for an Error
        say(false, error.what());
    } catch (...) {
        say(false, "an unknown exception");
    }
}

void Pending::set_tensors(SharedTensors tensors, std::vector<std::shared_ptr<device::Event>> ready,
                          std::shared_ptr<void> owner) noexcept {
    request_.tensors = std::move(tensors);
    request_.ready = std::move(ready);
    request_.keep_alive = std::move(owner);
}

void Pending::set_outputs(SharedTensors outputs) noexcept {
    request_.outputs = std::move(outputs);
    for (std::size_t i = 0; i < results_.size(); ++i)
        results_[i].output = output(i) ? output(i)->data : nullptr;
}

void Pending::set_enqueued(std::shared_ptr<device::Event> done) {
    done_ = std::move(done);
    auto expected = State::submitted;  // it may be complete already
    state_.compare_exchange_strong(expected, State::enqueued, std::memory_order_acq_rel);
}

bool Pending::set_ended(const std::exception_ptr& error) noexcept {
    if (ended_) return false;
    error_ = error;
    ended_ = true;
    unpublish();
    return true;
}

void Pending::set_published(trace::WaitingSlot* slot) noexcept {
    published_ = slot;
    if (ended_) unpublish();
}

void Pending::unpublish() noexcept {
    auto* const slot = published_.exchange(nullptr);
    if (slot == nullptr) return;
    slot->note.clear();
    slot->taken = false;
}

namespace {
thread_local int completing = 0;
}

bool Pending::is_completing() noexcept {
    return completing > 0;
}

void Pending::set_complete(bool memory_on_loan) noexcept {
    ++completing;
    if (!memory_on_loan) request_.keep_alive.reset();
    --completing;
    state_.store(State::complete, std::memory_order_seq_cst);
}

void EndedQueue::push(std::shared_ptr<Pending> pending) noexcept {
    const base::Lock lock(mutex_);
    auto& link = last_ ? last_->next_ : first_;
    last_ = pending.get();
    link = std::move(pending);
    empty_.store(false, std::memory_order_release);
}

std::shared_ptr<Pending> EndedQueue::pop() noexcept {
    if (empty_.load(std::memory_order_acquire)) return nullptr;
    const base::Lock lock(mutex_);
    auto pending = std::move(first_);
    if (pending) first_ = std::move(pending->next_);
    if (!first_) last_ = nullptr;
    empty_.store(!first_, std::memory_order_relaxed);
    return pending;
}

void ReleaseQueue::push(std::shared_ptr<Owners> owners) noexcept {
    const base::Lock lock(mutex_);
    owners->next = std::move(first_);
    first_ = std::move(owners);
    empty_.store(false, std::memory_order_release);
}

/// Takes them one by one, so that another thread can go on with the rest while user code runs.
bool ReleaseQueue::release() noexcept {
    bool any = false;
    while (auto owners = pop()) {
        ++completing;
        owners.reset();
        --completing;
        any = true;
    }
    return any;
}

std::shared_ptr<Owners> ReleaseQueue::pop() noexcept {
    if (empty_.load(std::memory_order_acquire)) return nullptr;
    const base::Lock lock(mutex_);
    auto owners = std::move(first_);
    if (owners) first_ = std::move(owners->next);
    empty_.store(!first_, std::memory_order_relaxed);
    return owners;
}

void Pending::rethrow() const try {
    if (!error_) return;
    error_seen_.store(true, std::memory_order_relaxed);
    const auto facts = [](const Error& error) {
        return Error::Facts{
            .tensor = error.tensor(), .operation = error.operation(), .ranks = error.ranks()};
    };
    try {
        std::rethrow_exception(error_);
    } catch (const RankDied& error) {  // a copy for each caller: no other thread frees its text
        throw RankDied(error.what(), facts(error));
    } catch (const Error& error) {
        throw Error(error.code(), error.what(), facts(error));
    }
} catch (
    const std::bad_alloc&) {  // for the copy; a caller would take the operation for unsubmitted
    std::rethrow_exception(error_);
}

}  // namespace guozhuang::engine
