#pragma once

#include <cstddef>
#include <guozhuang/stream.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/owned_memory.hpp"
#include "mpi_job.hpp"

namespace guozhuang::perf {

/// A device that has the tensors of a measurement, and the stream that works on them. For the main
/// thread.
class TensorDevice {
public:
    /// The device that is this rank's by its number on the host. Throws Error(unavailable) with the
    /// reason where devices of that kind cannot be used.
    explicit TensorDevice(DeviceKind kind);

    StreamRef stream() const noexcept { return stream_->ref(); }
    device::Stream& work() const noexcept { return *stream_; }  ///< the same
    device::Driver& driver() const noexcept { return *driver_; }
    int index() const noexcept { return index_; }
    std::string description() const;
    /// By which path the library moves tensors of all ranks, once it has: "direct", say; "none" for
    /// one rank.
    std::string path() const;
    /// How many ranks of this host have the device that has most.
    int sharers() const;

    /// Memory of the device, zero: a multiple of 8 bytes, more than none.
    device::OwnedMemory allocate(std::size_t bytes) const;
    device::OwnedMemory allocate_pinned(std::size_t bytes) const;
    /// to = from, on the host or the device, when the stream comes to it.
    void copy(std::span<std::byte> to, std::span<const std::byte> from) const;
    /// Waits until the stream has done all that is enqueued. Throws Error(unavailable) if the
    /// device has failed.
    void finish() const { finish(*stream_); }

    /// Bytes in a second.
    struct Bandwidths {
        double copy = 0;      ///< on the device: bytes read and bytes written
        double transfer = 0;  ///< between host and device, both ways at once: those of both
    };
    /// Measures rank 0's device, with nobody else at work; all ranks get the result. Collective.
    Bandwidths measure(const MpiJob& job) const;

private:
    void finish(device::Stream& stream) const;

    std::shared_ptr<device::Driver> driver_;
    int devices_, index_;
    std::shared_ptr<device::Stream> stream_;
};

/// The tensors' device; null if they are on the host. Collective. Throws a Refusal with the reason
/// if a rank cannot use it.
std::unique_ptr<TensorDevice> open_device(const MpiJob& job, std::optional<DeviceKind> kind);

/// Lets `fill` write to memory of the device, or of the host if there is none.
template <class Fill>
void fill_from_host(const TensorDevice* device, std::span<std::byte> memory, const Fill& fill) {
    if (device == nullptr) return fill(memory);
    std::vector<std::byte> contents(memory.size());
    fill(std::span(contents));
    device->copy(memory, contents);
    device->finish();
}

/// Returns look(contents), with the contents copied to the host if the memory is on a device.
template <class Look>
auto look_from_host(const TensorDevice* device, std::span<const std::byte> memory,
                    const Look& look) {
    if (device == nullptr) return look(memory);
    std::vector<std::byte> contents(memory.size());
    device->copy(contents, memory);
    device->finish();
    return look(std::span<const std::byte>(contents));
}

}  // namespace guozhuang::perf
