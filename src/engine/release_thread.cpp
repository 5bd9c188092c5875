#include "engine/release_thread.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "base/process.hpp"

namespace guozhuang::engine {
namespace {

thread_local bool releases_here = false;

}  // namespace

ReleaseThread::ReleaseThread(std::function<void(Pending&)> complete) try
    : complete_(std::move(complete)),
      thread_(base::start_thread("gz-releases", [this] { run(); })) {
} catch (const std::system_error& error) {
    throw Error(ErrorCode::out_of_memory,
                std::string("no thread to let go of memory of a device: ") + error.what());
}

void ReleaseThread::stop() noexcept {
    stopped_ = true;
    base::ring(bell_);
    base::join(thread_);
    complete_ended();
}

void ReleaseThread::let_go(std::shared_ptr<Owners> owners) noexcept {
    released_.push(std::move(owners));
    base::ring(bell_);
}

void ReleaseThread::complete(std::shared_ptr<Pending> pending) noexcept {
    ended_.push(std::move(pending));
    if (stopped_)
        complete_ended();
    else
        base::ring(bell_);
}

void ReleaseThread::check_wait(const Request& request) {
    if (!releases_here || !request.device) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} cannot be waited for here: the thread that lets go of what "
                            "operations on devices kept alive completes operations on devices",
                            request.label()));
}

void ReleaseThread::run() noexcept {
    releases_here = true;
    base::WaitLoop wait_loop(bell_, {});
    while (!stopped_)
        if (!complete_ended()) wait_loop.pause(base::Sleepers::idle);
}

/// Releases the owners first, so that an operation that has not failed drops the last reference to
/// its memory when it completes.
bool ReleaseThread::complete_ended() noexcept {
    bool any = released_.release();
    while (const auto pending = ended_.pop()) {
        released_.release();
        complete_(*pending);
        any = true;
    }
    return any;
}

}  // namespace guozhuang::engine
