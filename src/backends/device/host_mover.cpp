#include "backends/device/host_mover.hpp"

#include <guozhuang/error.hpp>
#include <limits>
#include <system_error>
#include <utility>

#include "base/process.hpp"

namespace guozhuang::backends {

HostMover::HostMover(Dependencies dependencies)
    : deps_(std::move(dependencies)),
      wait_(base::settings_for_words(deps_.wait)),
      copied_in_(deps_.driver, deps_.device),
      moved_(deps_.driver, deps_.device) {
    try {
        thread_ = base::start_thread("gz-staging", [this] { move_loads(); });
    } catch (const std::system_error& error) {
        throw Error(ErrorCode::out_of_memory,
                    std::string("no thread to move tensors of a device by way of the host: ") +
                        error.what());
    }
}

HostMover::~HostMover() {
    stop();
}

void HostMover::stop() noexcept {
    stopped_ = true;
    base::ring(bell_);
    base::join(thread_);
}

void HostMover::release() noexcept {
    released_ = true;
    base::ring(bell_);
}

std::uint32_t HostMover::add(Load load) {
    const auto first = added_;
    if (load.chunks.empty()) return first;
    added_ += static_cast<std::uint32_t>(load.chunks.size());
    load.first = first;
    {
        const base::Lock lock(mutex_);
        loads_.push_back(std::make_shared<Load>(std::move(load)));
    }
    base::ring(bell_);
    return first;
}

void HostMover::announce(device::Stream& stream, std::uint32_t chunk) {
    deps_.driver->write(stream, *copied_in_, chunk + 1);
}

void HostMover::wait_for(device::Stream& stream, std::uint32_t chunk) {
    deps_.driver->wait(stream, *moved_, chunk + 1);
}

// --- on the thread -------------------------------------------------------------------------------

/// Unblocks the streams at the end, when nothing moves any more: they copy into and out of the same
/// memory.
void HostMover::move_loads() {
    while (const auto load = next_load()) {
        const bool moved = load->bundle->attempt([&] { move(*load); });
        load->bundle.reset();
        if (moved) continue;
        failed_ = load;  // the job is over
        base::wait_until(bell_, wait_, [&] { return released_ || stopped_; });
    }
    // Past the number of every chunk that a stream waits for, now or later.
    device::advance(*moved_, std::numeric_limits<std::int32_t>::max() / 2);
}

/// Null when the thread must end.
std::shared_ptr<HostMover::Load> HostMover::next_load() {
    base::WaitLoop wait_loop(bell_, wait_);
    while (!released_ && !stopped_) {
        {
            const base::Lock lock(mutex_);
            if (!loads_.empty()) {
                auto load = std::move(loads_.front());
                loads_.pop_front();
                return load;
            }
        }
        wait_loop.pause(base::Sleepers::idle);
    }
    return nullptr;
}

/// Whether a stream has copied the chunk in. False once a path was released: the chunk may then
/// hold garbage, which must not reach other ranks, so the mover waits for the end of the job, which
/// throws.
bool HostMover::is_copied_in(std::uint32_t chunk) const {
    if (base::is_aborted(deps_.doorbell)) base::throw_cause(deps_.doorbell);
    if (released_ || stopped_) throw Error(ErrorCode::aborted, "the session has ended");
    return device::has_reached((*copied_in_).load(std::memory_order_acquire), chunk + 1) &&
           !deps_.paths.was_released();
}

/// Waits at its own bell: a ring of the rank's bell says nothing about the device.
void HostMover::move(Load& load) {
    auto number = load.first;
    for (auto& chunk : load.chunks) {
        base::wait_until(bell_, wait_, [&] { return is_copied_in(number); });
        load.backend.run(chunk.bundle);
        device::advance(*moved_, 1);
        ++number;
    }
}

}  // namespace guozhuang::backends
