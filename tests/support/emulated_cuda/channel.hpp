#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace guozhuang::emulated_cuda {

/// A queue through which a device takes the work of several streams, in the order in which it was
/// enqueued. Work that waits at the head keeps all work behind it from running, even of other
/// streams. Thread-safe.
class Channel {
public:
    /// A ticket for work that is enqueued now.
    std::uint64_t take_ticket();
    /// Returns when all work with earlier tickets has ended.
    void wait_for(std::uint64_t ticket);
    void end(std::uint64_t ticket);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t tickets_ = 0, at_ = 0;
};

/// The channels of a device: CUDA_DEVICE_MAX_CONNECTIONS of them. Thread-safe.
class Channels {
public:
    /// The channel for a new stream: the one with the fewest streams, as CUDA does at best.
    std::shared_ptr<Channel> next();

private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<Channel>> all_;
};

}  // namespace guozhuang::emulated_cuda
