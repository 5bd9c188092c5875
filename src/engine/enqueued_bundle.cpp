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
    for (const auto& pending : requests_) keep_alive_->all.push_back(pending->request().keep_alive);
    self_->all.reserve(1);
}

/// If it fails, `running` stays written: reports then say what failed.
bool EnqueuedBundle::attempt(const std::function<void()>& work) noexcept {
    try {
        const trace::TimelineSlice slice(*context_.timeline, "bundle",
                                         [&] { return facts_of(bundle_, context_.set); });
        context_.activity.running.write(name_of(bundle_.operation),
                                        requests_.front()->request().name.text());
        base::pass(base::Failpoint::execute);
        work();
        base::pass(base::Failpoint::executed);
        context_.activity.running.clear();
        return true;
    } catch (...) {
        fail(as_error(std::current_exception(), work_of(requests_), context_.rank));
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

/// What the requests kept alive goes first: of operations that have not failed, the last owners are
/// then let go when they complete.
void EnqueuedBundle::end(std::shared_ptr<EnqueuedBundle> bundle,
                         const std::exception_ptr& failure) noexcept {
    const auto listener = bundle->listener_;
    const auto& context = bundle->context_;
    const auto cause = failure ? failure : bundle->is_refused_ ? bundle->refusal_ : nullptr;
    const auto error = cause ? as_error(cause, work_of(bundle->requests_), context.rank) : nullptr;
    if (error) listener->on_failure(error);
    listener->let_go(std::move(bundle->keep_alive_));
    listener->on_end(bundle->to_end_, error);
    auto last = std::move(bundle->self_);
    last->all.push_back(std::move(bundle));
    listener->let_go(std::move(last));
    base::ring_local(context.doorbell, context.wait.audience);
}

std::exception_ptr EnqueuedBundle::end_of_job() const noexcept {
    try {
        base::throw_cause(context_.doorbell);
    } catch (...) {
        return std::current_exception();
    }
}

}  // namespace guozhuang::engine
