#include "engine/enqueued_bundle.hpp"

#include <array>
#include <guozhuang/error.hpp>
#include <utility>

#include "base/failpoint.hpp"
#include "device/host/neutral.hpp"
#include "device/owned_memory.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {

EnqueuedBundle::EnqueuedBundle(Bundle bundle, Requests requests, const Context& context,
                               std::shared_ptr<ExecutionListener> listener)
    : bundle_(std::move(bundle)),
      requests_(std::move(requests)),
      to_end_(requests_),
      context_(context),
      listener_(std::move(listener)) {
    keep_alive_->all.reserve(requests_.size() + bundle_.entries.size());
    for (const auto& pending : requests_) keep_alive_->all.push_back(pending->request().keep_alive);
    self_->all.reserve(1);
}

/// If it fails, `running` stays written: reports then say what failed.
bool EnqueuedBundle::attempt(const std::function<void()>& work) noexcept {
    try {
        const trace::TimelineSlice slice(*context_.timeline, "bundle",
                                         [&] { return facts_of(bundle_, context_.set); });
        context_.activity.running.write(name_of(bundle_.description->operation),
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

void EnqueuedBundle::make_contributions(const std::shared_ptr<device::Driver>& driver,
                                        device::Stream& stream) {
    for (const auto& pending : requests_) {
        if (pending->request().kind != Request::Kind::neutral) continue;
        auto tensors = pending->request().tensors;  // those that the bundle points to
        for (auto& tensor : tensors) {
            auto [memory, owner] =
                device::allocate_owned(driver, tensor.device.index, tensor.bytes());
            keep(std::move(owner));
            tensor.data = memory.data();
            std::array<std::byte, 8> element{};
            const auto neutral = std::span(element).first(size_of(tensor.dtype));
            device::fill_neutral(tensor.dtype, bundle_.description->op, neutral);
            if (!memory.empty()) driver->fill(stream, memory, neutral);
        }
    }
}

/// The constructor has reserved room for it, so this cannot throw for lack of memory and have the
/// caller free memory of the device. If the bundle has ended, the device has failed, and freeing
/// does not wait.
void EnqueuedBundle::keep(std::shared_ptr<void> owner) {
    const base::Lock lock(mutex_);
    if (!keep_alive_) throw Error(ErrorCode::unavailable, "the device has failed");
    keep_alive_->all.push_back(std::move(owner));
}

std::shared_ptr<Owners> EnqueuedBundle::take_kept() noexcept {
    const base::Lock lock(mutex_);
    return std::move(keep_alive_);
}

/// The operations fail before the stream is released, so that no program takes their tensors'
/// contents for results.
void EnqueuedBundle::fail(const std::exception_ptr& cause) noexcept {
    listener_->on_failure(cause);
    auto failed = requests_;
    listener_->on_end(failed, cause);
}

void EnqueuedBundle::refuse(std::exception_ptr failure) noexcept {
    refusal_ = std::move(failure);
    is_refused_ = true;
}

/// Drops the bundle's references to the requests' memory first, so that an operation that has not
/// failed drops the last one when it completes.
void EnqueuedBundle::end(std::shared_ptr<EnqueuedBundle> bundle,
                         const std::exception_ptr& failure) noexcept {
    const auto listener = bundle->listener_;
    const auto& context = bundle->context_;
    const auto cause = failure ? failure : bundle->is_refused_ ? bundle->refusal_ : nullptr;
    const auto error = cause ? as_error(cause, work_of(bundle->requests_), context.rank) : nullptr;
    if (error) listener->on_failure(error);
    listener->let_go(bundle->take_kept());
    listener->on_end(bundle->to_end_, error);
    auto last = std::move(bundle->self_);
    last->all.push_back(std::move(bundle));
    listener->let_go(std::move(last));
    context.ring(base::Sleepers::idle);
}

std::exception_ptr EnqueuedBundle::end_of_job() const noexcept {
    try {
        base::throw_cause(context_.doorbell);
    } catch (...) {
        return std::current_exception();
    }
}

}  // namespace guozhuang::engine
