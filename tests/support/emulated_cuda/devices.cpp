#include "support/emulated_cuda/devices.hpp"

#include <map>

#include "support/emulated_cuda/configuration.hpp"
#include "support/emulated_cuda/streams.hpp"

namespace guozhuang::emulated_cuda {
namespace {

thread_local Device* current = nullptr;
thread_local OwnContext* own_context = nullptr;

/// A thread's own default streams. They end with it.
struct OwnStreams {
    std::map<const Device*, std::shared_ptr<Stream>> of;
    ~OwnStreams() {
        for (const auto& [device, stream] : of) stream->close();
    }
};
thread_local OwnStreams own_streams;

}  // namespace

void Device::break_with(cudaError_t error) {
    auto none = cudaSuccess;
    error_.compare_exchange_strong(none, error);
    // Streams of other devices may be waiting for those of this one.
    for (auto* each : devices())
        for (const auto& stream : each->streams()) stream->wake();
}

std::shared_ptr<Stream> Device::legacy_stream() {
    std::shared_ptr<Stream> made;
    {
        const std::lock_guard lock(mutex_);
        if (legacy_) return legacy_;
        made = legacy_ = Stream::make(*this, Stream::Ordering::legacy);
        streams_.push_back(made);
    }
    return made;
}

std::shared_ptr<Stream> Device::per_thread_stream() {
    auto& stream = own_streams.of[this];
    if (!stream) {
        stream = Stream::make(*this, Stream::Ordering::blocking);
        add(stream);
    }
    return stream;
}

void Device::add(const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [](const auto& each) { return each.expired(); });
    streams_.push_back(stream);
}

std::vector<std::shared_ptr<Stream>> Device::streams() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Stream>> all;
    for (const auto& each : streams_)
        if (auto stream = each.lock()) all.push_back(std::move(stream));
    return all;
}

void Device::wait_until_idle() {
    for (const auto& stream : streams()) stream->wait_for(stream->position(), *this);
}

void Device::wait_before_allocating() {
    if (configuration().allocations_wait) wait_until_idle();
}

bool Device::enable_peer_of(int physical) noexcept {
    const unsigned bit = 1u << physical;
    return (reachable_.fetch_or(bit) & bit) == 0;
}

bool Device::take(std::size_t bytes) noexcept {
    if (used_.fetch_add(bytes) + bytes <= configuration().memory_bytes) return true;
    used_ -= bytes;
    return false;
}

std::size_t Device::total() {
    return configuration().memory_bytes;
}

const std::vector<Device*>& devices() {
    static const auto& all = *new auto([] {
        std::vector<Device*> made;
        for (const int physical : configuration().devices)
            made.push_back(new Device(static_cast<int>(made.size()), physical));
        return made;
    }());
    return all;
}

Device* device_or_null(int index) {
    const auto at = static_cast<std::size_t>(index);
    return index >= 0 && at < devices().size() ? devices()[at] : nullptr;
}

Device* device_of_physical(int physical) {
    for (auto* device : devices())
        if (device->physical() == physical) return device;
    return nullptr;
}

Device& current_device() {
    if (!current) set_current_device(devices().front());
    return *current;
}

Device* current_device_or_null() noexcept {
    return current;
}

void set_current_device(Device* device) noexcept {
    current = device;
    own_context = nullptr;
}

OwnContext* current_own_context() noexcept {
    return own_context;
}

void set_current_context(OwnContext& context) noexcept {
    set_current_device(&context.device);
    own_context = &context;
}

cudaError_t problem_with_driver() {
    if (configuration().driver / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
    return devices().empty() ? cudaErrorNoDevice : cudaSuccess;
}

}  // namespace guozhuang::emulated_cuda
