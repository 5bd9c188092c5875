#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "backends/device/paths.hpp"
#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// A thread that moves chunks in pinned memory among ranks, by the host algorithms: each chunk
/// after a stream has copied it in and before it is copied out. It synchronises with the streams
/// through words in pinned memory that count chunks, so it makes no device calls.
class HostMover {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;  ///< its index
        base::Doorbell& doorbell;
        base::WaitSettings wait;
        /// The paths of the process set. After the release of one of them the mover moves no more
        /// chunks, since streams may copy in garbage.
        const Paths& paths;
        /// Keeps the owner of the backends and the doorbell alive.
        std::shared_ptr<void> owner;
    };
    /// A part of a bundle that moves as one, as a bundle of host tensors.
    struct Chunk {
        std::vector<TensorView> tensors;
        std::vector<Result> results;
        engine::Bundle bundle;
    };
    /// A bundle on its way through pinned memory. The backend and the pinned memory must outlive
    /// the thread.
    struct Load {
        std::shared_ptr<engine::StreamBundle> bundle;
        std::vector<Chunk> chunks;
        engine::Backend& backend;
        std::uint32_t first = 0;  ///< the number of the first chunk; set by add()
    };
    /// Throws what the driver throws, and Error(out_of_memory) without a thread.
    explicit HostMover(Dependencies dependencies);
    ~HostMover();
    HostMover(const HostMover&) = delete;
    HostMover& operator=(const HostMover&) = delete;

    /// Loads move in the order in which the thread that drives adds them. Returns the number of the
    /// first chunk; the others follow.
    std::uint32_t add(Load load);
    /// Tells the mover that the stream has copied the chunk in, and makes the stream wait until the
    /// chunk has moved.
    void announce(device::Stream& stream, std::uint32_t chunk);
    void wait_for(device::Stream& stream, std::uint32_t chunk);

    /// Ends the thread. As soon as it has stopped moving, unblocks the streams that wait for a
    /// chunk, now or later. Any thread.
    void release() noexcept;
    /// Ends the thread.
    void stop() noexcept;

private:
    void move_loads();
    std::shared_ptr<Load> next_load();
    void move(Load& load);
    bool is_copied_in(std::uint32_t chunk) const;

    const Dependencies deps_;
    const base::WaitSettings wait_;
    const device::PinnedWord copied_in_, moved_;  ///< how many chunks
    std::uint32_t added_ = 0;                     ///< chunks
    std::atomic<bool> released_{false};

    base::Doorbell bell_;  ///< of the thread
    std::atomic<bool> stopped_{false};
    base::Mutex mutex_;
    std::deque<std::shared_ptr<Load>> loads_ GUOZHUANG_GUARDED_BY(mutex_);
    std::shared_ptr<Load> failed_;  ///< messages may still use its memory
    std::thread thread_;
};

}  // namespace guozhuang::backends
