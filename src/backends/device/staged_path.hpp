#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "backends/device/chunks.hpp"
#include "backends/device/path.hpp"
#include "backends/device/results.hpp"
#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"

namespace guozhuang::backends {

/// Moves tensors on a device by way of the host, where nothing better is possible: it needs neither
/// a peer's memory nor its GPU. A chunk of the bundle is copied into pinned memory, moved among the
/// ranks by the algorithms of the host, and copied back, while the chunks before and after it are
/// copied. All copies are enqueued at once, in both directions beside each other:
///
///     stream:  copy in 0, in 1, in 2, in 3, wait until 0 is out, copy in 4, ...
///     thread:  wait until 0 is in, move it, wait until 1 is in, move it, ...
///     out:     wait until 0 is moved, copy out 0, wait until 1 is moved, copy out 1, ...
///
/// The thread and the streams meet by words of pinned memory, each of which counts chunks. So the
/// thread calls nothing of the device's. At the end of the bundle the stream waits for the last
/// copy out.
class StagedPath final : public Path {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;  ///< its index
        int rank = 0;    ///< this one's in its process set
        const Results& results;
        /// Moves what is in pinned memory; this path's thread runs it.
        std::unique_ptr<engine::Backend> mover;
        base::Doorbell& doorbell;
        base::WaitSettings wait;
        /// Keeps alive what the mover and the doorbell are of.
        std::shared_ptr<void> owner;
    };
    /// Throws what the driver throws, and Error(out_of_memory) without a thread.
    explicit StagedPath(Dependencies dependencies);
    ~StagedPath() override;
    StagedPath(const StagedPath&) = delete;
    StagedPath& operator=(const StagedPath&) = delete;

    bool supports(const engine::Bundle&) const noexcept override { return true; }
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override;
    bool was_released() const noexcept override { return false; }
    void stop() noexcept override;

private:
    struct Transfer {
        std::span<std::byte> device, host;
    };
    /// What is moved at once: a part of a bundle, as a bundle of host tensors.
    struct Chunk {
        std::vector<Transfer> in, out;
        std::vector<TensorView> tensors;
        std::vector<Result> results;
        engine::Bundle bundle;
    };
    /// A bundle on its way through pinned memory.
    struct Load {
        std::shared_ptr<engine::StreamBundle> bundle;
        std::vector<Chunk> chunks;
        std::uint32_t first = 0;  ///< the number of its first chunk
    };

    Load load_of(std::shared_ptr<engine::StreamBundle> bundle);
    Chunk chunk_of(const engine::Bundle& bundle, std::span<const Fragment> fragments,
                   std::span<std::byte> memory) const;
    Chunk whole(const engine::Bundle& bundle);
    std::span<std::byte> memory_for_whole(std::size_t bytes);
    std::span<std::byte> slot(std::uint32_t chunk) const;
    void copy(const Load& load, device::Stream& stream);
    void copy_in(const Load& load, std::size_t chunk, device::Stream& stream);
    std::shared_ptr<device::Event> copy_out(const Load& load, std::size_t chunk);

    void move_loads();
    std::shared_ptr<Load> next_load();
    void move(Load& load);
    bool is_copied_in(std::uint32_t chunks) const;

    const Dependencies of_;
    const base::WaitSettings wait_;
    const std::shared_ptr<device::Stream> out_;
    const device::PinnedMemory slots_;
    const device::PinnedWord copied_in_, moved_;  ///< how many chunks
    std::uint32_t enqueued_ = 0;                  ///< chunks
    /// For bundles that are one chunk however large they are; the last one is in use.
    std::vector<device::PinnedMemory> whole_;

    std::atomic<bool> released_{false};

    base::Doorbell bell_;  ///< of the thread
    std::atomic<bool> stopped_{false};
    base::Mutex mutex_;
    std::deque<std::shared_ptr<Load>> loads_ GUOZHUANG_GUARDED_BY(mutex_);
    std::shared_ptr<Load> failed_;  ///< messages may still use its memory
    std::thread thread_;
};

}  // namespace guozhuang::backends
