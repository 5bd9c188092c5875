#include "engine/completions.hpp"

#include <iterator>
#include <utility>

#include "base/keep_for_ever.hpp"
#include "base/process.hpp"

namespace guozhuang::engine {
namespace {

using namespace std::chrono_literals;

/// How long nothing may end before the thread checks the health of the devices.
constexpr auto between_checks = 100ms;

}  // namespace

Completions::Completions(std::shared_ptr<device::Driver> driver) : driver_(std::move(driver)) {}

Completions::~Completions() {
    stopped_ = true;
    base::ring(bell_);
    base::join(thread_);
    if (!is_empty()) base::keep_for_ever(std::move(awaited_));
}

void Completions::add(std::shared_ptr<Completion> completion) {
    {
        const base::Lock lock(mutex_);
        awaited_.push_back(std::move(completion));
        if (!thread_.joinable())
            thread_ = base::start_thread("gz-completions", [this] { watch(); });
    }
    base::ring(bell_);
}

void Completions::watch() {
    base::WaitLoop wait_loop(bell_, settings_);
    auto next_check = base::Clock::now() + between_checks;
    while (!stopped_) {
        std::exception_ptr failure;
        auto ended = take([](Completion& each) { return each.is_reached(); });
        if (ended.empty() && base::Clock::now() >= next_check) {
            ended = take_unhealthy(failure);
            next_check = base::Clock::now() + between_checks;
        }
        for (const auto& completion : ended) completion->complete(failure);
        if (!ended.empty()) {
            ended.clear();
            next_check = base::Clock::now() + between_checks;
            base::ring(bell_, base::Sleepers::for_news);
            wait_loop.progressed();
        } else if (is_empty()) {
            wait_loop.pause(base::Sleepers::idle);
        } else {
            wait_loop.pause();
        }
    }
}

/// Takes the completions for which `is_so` holds.
template <class IsSo>
Completions::List Completions::take(const IsSo& is_so) {
    List taken;
    const base::Lock lock(mutex_);
    for (auto each = awaited_.begin(); each != awaited_.end();) {
        const auto next = std::next(each);
        if (is_so(**each)) taken.splice(taken.end(), awaited_, each);
        each = next;
    }
    return taken;
}

/// Checks the devices of pending completions. If one has failed, takes all its completions.
Completions::List Completions::take_unhealthy(std::exception_ptr& failure) {
    for (const int device : awaited_devices()) {
        try {
            driver_->require_healthy(device);
        } catch (const Error&) {
            failure = std::current_exception();
            return take([&](const Completion& each) { return each.device() == device; });
        }
    }
    return {};
}

std::set<int> Completions::awaited_devices() {
    std::set<int> devices;
    const base::Lock lock(mutex_);
    for (const auto& each : awaited_) devices.insert(each->device());
    return devices;
}

bool Completions::is_empty() {
    const base::Lock lock(mutex_);
    return awaited_.empty();
}

}  // namespace guozhuang::engine
