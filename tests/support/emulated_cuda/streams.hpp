#pragma once

#include <condition_variable>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace guozhuang::emulated_cuda {

class Channel;
class Device;
struct OwnContext;

/// Work that the stream's thread runs in order. Thread-safe. The thread is never joined, so a
/// process can end although a stream is stuck.
class Stream : public std::enable_shared_from_this<Stream> {
public:
    /// How a stream is ordered with the others of its device: the legacy default stream and the
    /// blocking ones wait for each other.
    enum class Ordering { legacy, blocking, independent };
    /// The kind of work. A kernel reaches memory of its device and of peers, a copy reaches memory
    /// of all devices, and a host function reaches no device memory and must not call CUDA.
    enum class Actor { kernel, copy, host };

    static std::shared_ptr<Stream> make(Device& device, Ordering ordering);

    Device& device() const noexcept { return device_; }
    /// The context in which the stream was made; null for the primary one of its device.
    OwnContext* own_context() const noexcept { return own_context_; }
    Ordering ordering() const noexcept { return ordering_; }

    /// Returns the position behind the work. The work is dropped if the device has failed.
    std::uint64_t enqueue(Actor actor, std::function<void()> work);
    /// The position behind all enqueued work.
    std::uint64_t position();
    bool reached(std::uint64_t position);
    /// Returns when the position is reached or either device has failed.
    void wait_for(std::uint64_t position, const Device& waiting);

    /// Ends the thread once it has run all enqueued work.
    void close();
    /// Makes all waiting threads check whether a device has failed.
    void wake();

private:
    struct Task {
        Actor actor;
        std::function<void()> work;
        std::uint64_t ticket = 0;  ///< of the channel
    };

    Stream(Device& device, Ordering ordering);
    void run();
    void run(const Task& task);
    std::uint64_t push(Actor actor, std::function<void()> work);
    void wait_in_order_for(Stream& other);
    void leave_channel_at_end();

    Device& device_;
    OwnContext* const own_context_;
    const Ordering ordering_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    std::uint64_t enqueued_ = 0, completed_ = 0;
    bool closed_ = false;
    std::shared_ptr<Channel> channel_;  ///< null once it is closed and has no work
};

/// Whether the calling thread is in a host function that a stream runs.
bool in_host_function() noexcept;

cudaStream_t add_stream(std::shared_ptr<Stream> stream);
/// The stream of a handle, the default streams' too. Null for what never was a handle; a destroyed
/// stream's breaks a rule.
std::shared_ptr<Stream> find_stream(cudaStream_t handle);
/// Null if the handle names a default stream, or nothing.
std::shared_ptr<Stream> remove_stream(cudaStream_t handle);

}  // namespace guozhuang::emulated_cuda
