#include <fmt/format.h>

#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/handle.hpp>

#include "base/error_text.hpp"
#include "base/process.hpp"
#include "engine/pending.hpp"
#include "engine/release_thread.hpp"

namespace guozhuang {

Handle::Handle(std::shared_ptr<engine::Pending> pending) noexcept : pending_(std::move(pending)) {}

Handle::~Handle() {
    if (pending_ && std::uncaught_exceptions() > 0) pending_->drop_by_exception();
}

namespace {

/// Drives until `arrived()`, then throws the operation's error if it has one. If the job ends
/// meanwhile, another thread may not have completed the operation yet: this still throws the
/// operation's own error, and throws what ended the job only if the operation has not ended.
bool drive(const engine::Pending& pending, const std::function<bool()>& arrived,
           base::Deadline deadline = base::no_deadline) {
    bool in_time = true;
    try {
        in_time = pending.progress_source().drive_until(arrived, deadline);
    } catch (...) {
        if (!pending.has_ended()) throw;
        pending.rethrow();
    }
    if (pending.complete()) pending.rethrow();
    return in_time;
}

/// After enqueued(): makes the stream wait for the end. False if the caller must wait here instead:
/// the operation was on no stream, or will fail.
bool let_wait(const engine::Pending& pending, StreamRef stream) {
    const auto& done = pending.done_event();
    if (done) pending.request().device->wrap(stream)->wait(done);
    return done != nullptr;
}

std::vector<Result> take_results(const Handle& handle, engine::Pending& pending) {
    handle.wait();
    auto results = pending.take_results();
    if (results.empty())
        throw Error(ErrorCode::invalid_argument, base::quote(pending.request().name.text()) +
                                                     ": its result has been taken before");
    return results;
}

}  // namespace

void Handle::wait() const {
    if (!pending_->complete()) engine::ReleaseThread::check_wait(pending_->request());
    drive(*pending_, [this] { return pending_->complete(); });
}

bool Handle::wait_for(std::chrono::microseconds limit) const {
    return drive(
        *pending_, [this] { return pending_->complete(); }, base::deadline_after(limit));
}

void Handle::wait(StreamRef stream) const {
    if (stream.device.kind == DeviceKind::host) return wait();
    drive(*pending_, [this] { return pending_->enqueued(); });
    if (!let_wait(*pending_, stream)) wait();
}

bool Handle::wait_for(StreamRef stream, std::chrono::microseconds limit) const {
    if (stream.device.kind == DeviceKind::host) return wait_for(limit);
    const auto deadline = base::deadline_after(limit);
    if (!drive(
            *pending_, [this] { return pending_->enqueued(); }, deadline))
        return false;
    return let_wait(*pending_, stream) ||
           drive(
               *pending_, [this] { return pending_->complete(); }, deadline);
}

bool Handle::done() const {
    base::refuse_forked();
    return pending_->complete();
}

Result ResultHandle::take() const {
    return std::move(take_results(*this, *pending_).front());
}

std::vector<Result> ResultsHandle::take() const {
    return take_results(*this, *pending_);
}

int JoinHandle::last_rank() const {
    wait();
    return static_cast<int>(pending_->result(0).rows.front());
}

}  // namespace guozhuang
