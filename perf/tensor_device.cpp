#include "tensor_device.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <functional>
#include <guozhuang/error.hpp>
#include <guozhuang/info.hpp>
#include <guozhuang/session.hpp>
#include <thread>

#include "api/drivers.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

constexpr std::size_t measured_bytes = std::size_t{64} << 20;  // more than caches hold
constexpr int measured_times = 5;

/// The median time of some runs of what moves so many bytes, as a bandwidth.
double bandwidth(std::size_t bytes, const std::function<void()>& run) {
    run();
    std::vector<double> seconds;
    for (int i = 0; i < measured_times; ++i) {
        const auto start = Clock::now();
        run();
        seconds.push_back(seconds_since(start));
    }
    return static_cast<double>(bytes) / quantile(seconds, 0.5);
}

}  // namespace

TensorDevice::TensorDevice(DeviceKind kind)
    : driver_(api::driver_of(kind)),
      devices_(driver_->device_count()),
      index_(local_rank() % devices_),
      stream_(driver_->make_stream(index_)) {}

std::string TensorDevice::description() const {
    return driver_->description(index_);
}

std::string TensorDevice::path() const {
    const auto items = info();
    const auto found = std::ranges::find(items, "path", &InfoItem::key);
    return found == items.end() ? "none"
                                : found->value.substr(0, found->value.find_first_of(" ,:"));
}

int TensorDevice::sharers() const {
    return (local_size() + devices_ - 1) / devices_;
}

device::OwnedMemory TensorDevice::allocate(std::size_t bytes) const {
    auto memory = device::allocate_owned(driver_, index_, bytes);
    driver_->fill(*stream_, memory.memory, std::array<std::byte, 8>{});
    finish();
    return memory;
}

device::OwnedMemory TensorDevice::allocate_pinned(std::size_t bytes) const {
    return device::allocate_pinned(driver_, index_, bytes);
}

void TensorDevice::copy(std::span<std::byte> to, std::span<const std::byte> from) const {
    if (!to.empty()) driver_->copy(*stream_, to, from);
}

void TensorDevice::finish(device::Stream& stream) const {
    for (const auto end = stream.record(); !end->done();) std::this_thread::yield();
}

TensorDevice::Bandwidths TensorDevice::measure(const MpiJob& job) const {
    Bandwidths found;
    job.align();
    if (job.first()) {
        const auto one = allocate(measured_bytes), other = allocate(measured_bytes);
        const auto in = allocate_pinned(measured_bytes), out = allocate_pinned(measured_bytes);
        const auto second = driver_->make_stream(index_);
        found.copy = bandwidth(2 * measured_bytes, [&] {
            copy(one.memory, other.memory);
            finish();
        });
        found.transfer = bandwidth(2 * measured_bytes, [&] {
            copy(one.memory, in.memory);
            driver_->copy(*second, out.memory, other.memory);
            finish();
            finish(*second);
        });
    }
    return {job.max(found.copy), job.max(found.transfer)};
}

std::unique_ptr<TensorDevice> open_device(const MpiJob& job, std::optional<DeviceKind> kind) {
    std::unique_ptr<TensorDevice> device;
    if (!kind) return device;
    job.all_or_none([&] {
        try {
            device = std::make_unique<TensorDevice>(*kind);
        } catch (const Error& error) {
            throw Refusal(fmt::format("--device {}: {}", name_of(*kind), error.what()));
        }
    });
    return device;
}

}  // namespace guozhuang::perf
