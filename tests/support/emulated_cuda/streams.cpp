#include "support/emulated_cuda/streams.hpp"

#include <thread>
#include <utility>

#include "support/emulated_cuda/channel.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/handles.hpp"
#include "support/emulated_cuda/protection.hpp"
#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

thread_local bool on_behalf_of_host = false;

auto& handles() {
    static auto& all = *new Handles<cudaStream_t, Stream>(0x51000000, "a destroyed stream is used");
    return all;
}

}  // namespace

std::shared_ptr<Stream> Stream::make(Device& device, Ordering ordering) {
    std::shared_ptr<Stream> stream(new Stream(device, ordering));
    std::thread([stream] { stream->run(); }).detach();
    return stream;
}

Stream::Stream(Device& device, Ordering ordering)
    : device_(device),
      own_context_(current_own_context()),
      ordering_(ordering),
      channel_(device.channels.next()) {}

std::uint64_t Stream::enqueue(Actor actor, std::function<void()> work) {
    if (ordering_ == Ordering::independent) return push(actor, std::move(work));
    const auto legacy = device_.legacy_stream();
    const std::lock_guard lock(device_.enqueueing);
    if (ordering_ == Ordering::blocking) {
        wait_in_order_for(*legacy);
    } else {
        for (const auto& other : device_.streams())
            if (other->ordering_ == Ordering::blocking) wait_in_order_for(*other);
    }
    return push(actor, std::move(work));
}

void Stream::wait_in_order_for(Stream& other) {
    const auto position = other.position();
    if (!other.reached(position))
        push(Actor::copy, [this, position, stream = other.shared_from_this()] {
            stream->wait_for(position, device_);
        });
}

std::uint64_t Stream::push(Actor actor, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (!channel_) break_rule("a destroyed stream is used");
    tasks_.push_back({actor, std::move(work), channel_->take_ticket()});
    changed_.notify_all();
    return ++enqueued_;
}

std::uint64_t Stream::position() {
    const std::lock_guard lock(mutex_);
    return enqueued_;
}

bool Stream::reached(std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    return completed_ >= position;
}

void Stream::wait_for(std::uint64_t position, const Device& waiting) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return completed_ >= position || device_.broken() || waiting.broken(); });
}

void Stream::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    leave_channel_at_end();
    changed_.notify_all();
}

/// With the lock. A stream that has come to its end takes no room from others.
void Stream::leave_channel_at_end() {
    if (closed_ && completed_ == enqueued_) channel_.reset();
}

void Stream::wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
}

void Stream::run() {
    become_stream_thread();
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return !tasks_.empty() || closed_; });
        if (tasks_.empty()) return;
        auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        channel_->wait_for(task.ticket);
        if (!device_.broken()) run(task);
        task.work = {};  // what it holds ends before anyone sees it done
        channel_->end(task.ticket);
        lock.lock();
        ++completed_;
        leave_channel_at_end();
        changed_.notify_all();
    }
}

void Stream::run(const Task& task) {
    on_behalf_of_host = task.actor == Actor::host;
    set_rights(task.actor == Actor::host     ? no_rights
               : task.actor == Actor::kernel ? device_.reachable()
                                             : all_rights);
    task.work();
}

bool in_host_function() noexcept {
    return on_behalf_of_host;
}

cudaStream_t add_stream(std::shared_ptr<Stream> stream) {
    stream->device().add(stream);
    return handles().add(std::move(stream));
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) return current_device().legacy_stream();
    if (handle == cudaStreamPerThread) return current_device().per_thread_stream();
    return handles().find(handle);
}

std::shared_ptr<Stream> remove_stream(cudaStream_t handle) {
    return handles().remove(handle);
}

}  // namespace guozhuang::emulated_cuda
