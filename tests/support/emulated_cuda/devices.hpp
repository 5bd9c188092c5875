#pragma once

#include <atomic>
#include <cuda_runtime_api.h>
#include <memory>
#include <mutex>
#include <vector>

#include "support/emulated_cuda/channel.hpp"

namespace guozhuang::emulated_cuda {

class Stream;

/// A device as this process sees it. Thread-safe; never destroyed.
class Device {
public:
    Device(int index, int physical) noexcept : index_(index), physical_(physical) {}

    int index() const noexcept { return index_; }
    /// Its number in the machine: the same in all processes, whatever devices they see.
    int physical() const noexcept { return physical_; }

    /// The error that every call on this device returns, once it has failed.
    cudaError_t error() const noexcept { return error_.load(std::memory_order_acquire); }
    bool broken() const noexcept { return error() != cudaSuccess; }
    /// Makes the device fail: its streams drop their work and run nothing more.
    void break_with(cudaError_t error);

    std::shared_ptr<Stream> legacy_stream();
    std::shared_ptr<Stream> per_thread_stream();
    void add(const std::shared_ptr<Stream>& stream);
    /// Streams that have work or may get some, destroyed ones too.
    std::vector<std::shared_ptr<Stream>> streams();
    /// Waits for all work enqueued on the device.
    void wait_until_idle();
    /// The same if the environment says that allocations wait.
    void wait_before_allocating();

    bool enable_peer_of(int physical) noexcept;  ///< false if it was enabled
    /// The devices whose memory kernels may touch, as for set_rights().
    unsigned reachable() const noexcept { return reachable_.load() | 1u << physical_; }

    /// Accounts for memory; false if there is not that much.
    bool take(std::size_t bytes) noexcept;
    void give_back(std::size_t bytes) noexcept { used_ -= bytes; }
    std::size_t used() const noexcept { return used_; }
    static std::size_t total();

    Channels channels;
    /// Held while work is enqueued that is ordered with other streams of this device.
    std::mutex enqueueing;

private:
    const int index_, physical_;
    std::atomic<cudaError_t> error_ = cudaSuccess;
    std::atomic<unsigned> reachable_ = 0;
    std::atomic<std::size_t> used_ = 0;
    std::mutex mutex_;
    std::shared_ptr<Stream> legacy_;
    std::vector<std::weak_ptr<Stream>> streams_;
};

/// All devices that the process can see, in order.
const std::vector<Device*>& devices();
Device* device_or_null(int index);
/// The visible device of that number in the machine, or null.
Device* device_of_physical(int physical);

/// The calling thread's device: the first one, which gets a context by that, if none was chosen.
Device& current_device();
Device* current_device_or_null() noexcept;
void set_current_device(Device* device) noexcept;

/// A context that the program has made on a device; the CUDA runtime does not use it by itself.
struct OwnContext {
    Device& device;
};
/// The calling thread's; null where it has its device's primary one, or none.
OwnContext* current_own_context() noexcept;
void set_current_context(OwnContext& context) noexcept;

/// Why no device can be used, if none can: no driver, a driver that is too old, no device.
cudaError_t problem_with_driver();

}  // namespace guozhuang::emulated_cuda
