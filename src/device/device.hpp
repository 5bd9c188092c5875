#pragma once

#include <cstddef>
#include <functional>
#include <guozhuang/stream.hpp>
#include <guozhuang/types.hpp>
#include <memory>
#include <span>
#include <string>

namespace guozhuang::device {

/// A point in a stream's work. It is recorded once, when it is created, so no event is unrecorded
/// (waiting for one would wait for nothing, as in CUDA). Thread-safe.
class Event {
public:
    virtual ~Event() = default;
    /// Whether everything enqueued before the event is done. Never blocks. Throws
    /// Error(unavailable) when the device has failed.
    virtual bool done() const = 0;
};

/// Work that runs in order, beside the threads that enqueue it. Streams run independently of each
/// other but for wait(). Nothing here blocks the caller. Thread-safe. Dropping a stream loses no
/// work: what was enqueued still runs (the host fake waits for it, CUDA does not).
///
/// This is how a bundle runs without a thread that waits for it:
///
///     comm->wait(user_stream->record());       // once the user's work on the tensors is done
///     comm->launch(run_the_bundle);
///     auto done = comm->record();              // user_stream->wait(done): later work after it
///     comm->launch(ring_the_doorbell);         // sees done->done() == true
class Stream {
public:
    virtual ~Stream() = default;
    /// Makes later work of this stream wait for the event, which is of any stream of the same
    /// driver. The event may be dropped after the call.
    virtual void wait(const std::shared_ptr<const Event>& event) = 0;
    /// Enqueues a host function, which runs on a thread of the device. It must not throw, call the
    /// device, or drop the last reference to an event or stream. Once the device has failed it
    /// never runs; Event::done() then throws.
    virtual void launch(std::function<void()> work) = 0;
    virtual std::shared_ptr<Event> record() = 0;
    /// The stream's name for Driver::wrap and in the public API, valid as long as the stream lives.
    virtual StreamRef ref() const noexcept = 0;
};

/// One kind of device: memory, copies, reduction and streams. Thread-safe. Device indices are
/// 0 .. device_count()-1, anything else is Error(invalid_argument); a call that the device refuses
/// is Error(unavailable), or Error(out_of_memory) from allocate.
class Driver {
public:
    virtual ~Driver() = default;
    virtual int device_count() const noexcept = 0;
    /// One line for users: "NVIDIA H200, 139 GiB, compute capability 9.0".
    virtual std::string description(int device) const = 0;

    /// Aligned to 256 bytes at least; empty for 0 bytes. May wait for the device, as release() may:
    /// so scratch is allocated once and kept.
    virtual std::span<std::byte> allocate(int device, std::size_t bytes) = 0;
    /// Releases what allocate() returned. No stream may still use it.
    virtual void release(int device, std::span<std::byte> memory) noexcept = 0;

    /// to = from, between host and device in any direction, in stream order. Equal sizes, no
    /// overlap.
    virtual void copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) = 0;
    /// into = into (op) other, element by element on the device, in stream order. Equal sizes,
    /// whole aligned elements, no overlap. `average` only adds: whoever finishes the reduction
    /// divides. f16 and bf16 go through f32; min and max propagate NaN and put -0 below +0;
    /// integers wrap. On boolean only min and max, else Error(invalid_argument).
    virtual void reduce(Stream& stream, ReduceOp op, DType dtype, std::span<std::byte> into,
                        std::span<const std::byte> other) = 0;

    virtual std::shared_ptr<Stream> make_stream(int device) = 0;
    /// A user's stream as a Stream. The user still owns it, and it must outlive the result. A null
    /// handle is the device's default stream.
    virtual std::shared_ptr<Stream> wrap(StreamRef stream) = 0;
};

}  // namespace guozhuang::device
