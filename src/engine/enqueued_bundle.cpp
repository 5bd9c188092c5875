#include "engine/enqueued_bundle.hpp"

#include <guozhuang/error.hpp>
#include <utility>

#include "base/failpoint.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {

EnqueuedBundle::EnqueuedBundle(Bundle bundle, Requests requests, const Context& context,
                               std::shared_ptr<ExecutionListener> listener)
    : bundle_(std::move(bundle)),
      requests_(std::move(requests)),
      to_end_(requests_),
      context_(context),
      listener_(std::move(listener)) {
    for (const auto& pending : requests_) keep_alive_.push_back(pending->request().keep_alive);
}

/// If it fails, `running` stays written: reports then say what failed.
bool EnqueuedBundle::attempt(const std::function<void()>& work) noexcept {
    const auto operation = name_of(bundle_.operation);
    try {
        const trace::TimelineSlice slice(*context_.timeline, "bundle",
                                         [&] { return facts_of(bundle_, context_.set); });
        context_.activity.running.write(operation, requests_.front()->request().name);
        base::pass(base::Failpoint::execute);
        work();
        base::pass(base::Failpoint::executed);
        context_.activity.running.clear();
        return true;
    } catch (...) {
        fail(as_error(std::current_exception(), operation, context_.rank));
        return false;
    }
}

/// The operations fail before the stream is let go, so that no program takes their contents for
/// results without having been told.
void EnqueuedBundle::fail(const std::exception_ptr& cause) noexcept {
    listener_->on_failure(cause);
    auto failed = requests_;
    listener_->on_end(failed, cause);
}

void EnqueuedBundle::refuse(std::exception_ptr failure) noexcept {
    refusal_ = std::move(failure);
    is_refused_ = true;
}

/// The owners go first: those of operations that have not failed are then let go by their handles.
void EnqueuedBundle::end(const std::exception_ptr& failure) noexcept {
    const auto cause = failure ? failure : is_refused_ ? refusal_ : nullptr;
    const auto error = cause ? as_error(cause, name_of(bundle_.operation), context_.rank) : nullptr;
    if (error) listener_->on_failure(error);
    keep_alive_.clear();
    listener_->on_end(to_end_, error);
}

void EnqueuedBundle::end_of_job() noexcept {
    try {
        base::throw_cause(context_.doorbell);
    } catch (...) {
        end(std::current_exception());
    }
}

}  // namespace guozhuang::engine
