#pragma once

#include <cstddef>
#include <guozhuang/stream.hpp>
#include <memory>
#include <span>

namespace guozhuang::test {

/// Device memory of a test program, which like a trainer has its own stream. Any thread.
class DeviceMemory {
public:
    DeviceMemory() = default;
    virtual ~DeviceMemory() = default;
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    /// The stream that produces the tensors of put(), and the device.
    virtual StreamRef stream() const = 0;
    /// A copy of these bytes on the device, as soon as the stream has done its work.
    virtual std::shared_ptr<void> put(std::span<const std::byte> bytes) = 0;
    /// Copies from the device, behind the stream's work, and waits for that.
    virtual void get(std::span<std::byte> bytes, const void* from) = 0;
};

/// The device on which the operations of tests/support/cases have their tensors; null: the host.
inline DeviceMemory*& device_memory() {
    static DeviceMemory* memory = nullptr;
    return memory;
}

/// The place of a tensor on that device; null for host memory, which the fake device also has.
inline DeviceMemory* memory_of(Device device) {
    return device.kind == DeviceKind::host ? nullptr : device_memory();
}

/// The device of tensors for which a case names none.
inline Device usual_device() {
    return device_memory() != nullptr ? device_memory()->stream().device : Device{};
}

}  // namespace guozhuang::test
