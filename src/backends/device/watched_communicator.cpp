#include "backends/device/watched_communicator.hpp"

#include <exception>
#include <guozhuang/error.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.hpp"
#include "base/process.hpp"

namespace guozhuang::backends {
namespace {

using namespace std::chrono_literals;

constexpr auto between_looks = 100ms;
/// How long a rank waits for the others to reach the end of a communicator: their streams may be
/// behind, but a rank whose NCCL fails there never arrives.
constexpr auto most_time_together = 15s;

/// Nobody rings when NCCL is done.
constexpr base::WaitSettings for_looks{
    .spin = 0us, .sleep_first = between_looks, .sleep_limit = between_looks};
constexpr base::WaitSettings for_the_end{.spin = 0us, .sleep_first = 1ms, .sleep_limit = 10ms};

}  // namespace

std::shared_ptr<WatchedCommunicator> WatchedCommunicator::make(
    std::unique_ptr<device::NcclCommunicator> communicator) {
    std::shared_ptr<WatchedCommunicator> made(new WatchedCommunicator(std::move(communicator)));
    try {
        // The thread keeps its own references, since stop() may have to abandon it.
        made->thread_ = base::start_thread("gz-nccl", [made] { made->run(); });
    } catch (const std::system_error& error) {
        throw Error(ErrorCode::out_of_memory,
                    std::string("no thread to watch over NCCL: ") + error.what());
    }
    return made;
}

void WatchedCommunicator::group(const std::function<void(device::NcclCommunicator&)>& calls) {
    const base::Lock lock(mutex_);
    require_usable();
    is_ready_ = false;
    auto& communicator = *communicator_;
    communicator.group([&] { calls(communicator); });
}

bool WatchedCommunicator::is_ready() {
    const base::Lock lock(mutex_);
    require_usable();
    is_ready_ = false;
    return is_ready_ = communicator_->is_ready();
}

bool WatchedCommunicator::has_failed() noexcept try {
    is_ready();
    return false;
} catch (const Error&) {
    return true;
}

void WatchedCommunicator::require_usable() const {
    if (released_ || !communicator_)
        throw Error(ErrorCode::aborted, "the session has ended, and its NCCL communicator with it");
}

void WatchedCommunicator::watch(const std::shared_ptr<engine::StreamBundle>& bundle) {
    bool was_empty = false;
    {
        const base::Lock lock(bundles_mutex_);
        was_empty = bundles_.empty();
        bundles_.push_back(bundle);
    }
    if (was_empty) base::ring(bell_);
}

void WatchedCommunicator::release() noexcept {
    released_ = true;
    base::ring(bell_);
}

bool WatchedCommunicator::stop(const base::Doorbell& job,
                               std::chrono::milliseconds most_time_to_abort) noexcept {
    stopped_ = true;
    base::ring(bell_);
    if (!thread_.joinable()) return has_ended_;
    auto deadline = base::deadline_after(most_time_together + most_time_to_abort);
    for (base::WaitLoop wait_loop(bell_, for_the_end); !has_ended_; wait_loop.pause()) {
        if (base::Clock::now() >= deadline) {
            thread_.detach();
            return false;
        }
        if (!released_ && base::is_aborted(job)) {
            release();
            deadline = base::deadline_after(most_time_to_abort);
        }
    }
    base::join(thread_);
    return true;
}

// --- on the thread -------------------------------------------------------------------------------

void WatchedCommunicator::run() noexcept {
    base::WaitLoop wait_loop(bell_, for_looks);
    auto next_look = base::Clock::now() + between_looks;
    while (!stopped_ && !released_) {
        if (base::Clock::now() >= next_look) {
            look();
            next_look = base::Clock::now() + between_looks;
        }
        is_idle() ? wait_loop.pause(base::Sleepers::idle) : wait_loop.pause();
    }
    end();
    has_ended_ = true;
    base::ring(bell_);
}

/// Once a bundle has failed, the job is over, and only release() remains.
void WatchedCommunicator::look() {
    const auto bundle = first_on_its_way();
    if (!bundle || has_failed_) return;
    try {
        is_ready();
    } catch (const Error&) {
        const auto failure = std::current_exception();
        if (ends_within(until_death_is_known)) return;
        has_failed_ = !bundle->attempt([&] { std::rethrow_exception(failure); });
    }
}

bool WatchedCommunicator::ends_within(std::chrono::milliseconds limit) {
    return base::wait_until(
        bell_, for_looks, [&] { return released_ || stopped_; }, base::Clock::now() + limit);
}

/// Null if there is none.
std::shared_ptr<engine::StreamBundle> WatchedCommunicator::first_on_its_way() {
    if (is_idle()) return nullptr;
    const base::Lock lock(bundles_mutex_);
    return bundles_.front().lock();
}

/// Forgets the bundles that have ended.
bool WatchedCommunicator::is_idle() {
    const base::Lock lock(bundles_mutex_);
    while (!bundles_.empty() && bundles_.front().expired()) bundles_.pop_front();
    return bundles_.empty();
}

void WatchedCommunicator::end() noexcept {
    const base::Lock lock(mutex_);
    if (is_ready_ && !has_failed_ && !released_) end_together();
    communicator_.reset();
}

/// Other ranks' operations may still need this rank's part of NCCL, so it waits for those ranks, up
/// to `most_time_together`.
void WatchedCommunicator::end_together() try {
    auto& communicator = *communicator_;
    communicator.finalize();
    if (!base::wait_until(
            bell_, for_the_end, [&] { return communicator.is_ready() || released_; },
            base::Clock::now() + most_time_together))
        base::log(LogLevel::debug, "an NCCL communicator ends without the other ranks");
} catch (const Error& error) {
    base::log(LogLevel::debug, "an NCCL communicator ends without the other ranks: {}",
              error.what());
}

}  // namespace guozhuang::backends
