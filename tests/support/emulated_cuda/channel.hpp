#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace guozhuang::emulated_cuda {

/// Through which a device takes the work of several streams, in the order in which it was enqueued:
/// what waits at the head keeps all behind it from running, that of other streams too. Thread-safe.
class Channel {
public:
    /// For what is enqueued now.
    std::uint64_t take_ticket();
    /// Returns when all that was enqueued before has ended.
    void wait_for(std::uint64_t ticket);
    void end(std::uint64_t ticket);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t tickets_ = 0, at_ = 0;
};

/// Those of a device, of which there are CUDA_DEVICE_MAX_CONNECTIONS. Thread-safe.
class Channels {
public:
    /// For a new stream: the one that the fewest streams have, which is the best that CUDA may do.
    std::shared_ptr<Channel> next();

private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<Channel>> all_;
};

}  // namespace guozhuang::emulated_cuda
