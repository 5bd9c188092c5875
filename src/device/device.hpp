#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <guozhuang/stream.hpp>
#include <guozhuang/types.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "device/copy.hpp"
#include "device/memory_sharing.hpp"
#include "device/or_reason.hpp"
#include "device/reduction.hpp"
#include "device/sum_order.hpp"

namespace guozhuang::device {

class Nccl;

/// A point in a stream's work. It is recorded once, when it is created, so there are no unrecorded
/// events (on which CUDA would not wait). Thread-safe.
class Event {
public:
    virtual ~Event() = default;
    /// Whether everything enqueued before the event is done. Never blocks. Throws
    /// Error(unavailable) when the device has failed.
    virtual bool done() const = 0;
};

/// Work that runs in order, beside the threads that enqueue it. Streams run independently of each
/// other except for wait(). Nothing here blocks the caller. Thread-safe. Dropping a stream loses no
/// work: what was enqueued still runs (CUDA does not wait for it, the tests' fake does).
///
/// This is how a bundle runs without a thread that waits for it:
///
///     comm->wait(user_stream->record());       // once the user's work on the tensors is done
///     driver.copy(*comm, slot, tensor);        // and whatever else moves the bundle
///     auto done = comm->record();              // user_stream->wait(done): later work after it
///     driver.write(*comm, ended, 1);           // a host thread that looks at the word sees 1
class Stream {
public:
    virtual ~Stream() = default;
    /// Makes later work on this stream wait for the event, from any stream of the same driver. The
    /// event may be dropped after the call.
    virtual void wait(const std::shared_ptr<const Event>& event) = 0;
    /// Throws Error(invalid_argument) for a user stream that is being captured into a graph or
    /// belongs to another device; the capture stays valid.
    virtual std::shared_ptr<Event> record() = 0;
    /// The stream's name for Driver::wrap and in the public API, valid as long as the stream lives.
    virtual StreamRef ref() const noexcept = 0;
};

/// A counter in pinned or registered memory that streams and host threads share. It counts up and
/// wraps around: it has reached a value that is at most 2^31 - 1 behind it.
using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint32_t));

struct WordValue {
    Word* word;
    std::uint32_t value;
};

constexpr bool has_reached(std::uint32_t count, std::uint32_t value) noexcept {
    return static_cast<std::int32_t>(count - value) >= 0;
}

/// Kinds of memory that a driver tells apart.
enum class MemoryKind : std::uint8_t {
    unknown,  ///< nothing: host memory, or memory that has been freed
    host,     ///< host memory that the device reaches too
    device,   ///< of one device
    managed   ///< migrates between host and devices
};
struct MemoryLocation {
    MemoryKind kind = MemoryKind::unknown;
    int device = 0;  ///< of MemoryKind::device
};

/// One kind of device: memory, copies, reduction and streams. Thread-safe. Device indices are 0 to
/// device_count()-1, others throw Error(invalid_argument). A call that the device refuses throws
/// Error(unavailable), or Error(out_of_memory) from allocate. Calls that take a stream only
/// enqueue.
class Driver {
public:
    virtual ~Driver() = default;
    virtual int device_count() const noexcept = 0;
    /// One line for users: "NVIDIA H200, 139 GiB, compute capability 9.0".
    virtual std::string description(int device) const = 0;
    /// The bytes of its memory that no process uses; empty if unknown.
    virtual std::optional<std::size_t> free_memory(int) const noexcept { return std::nullopt; }
    /// Throws Error(unavailable), with the driver's text, if the device has failed: then nothing
    /// that was enqueued will run.
    virtual void require_healthy(int device) const = 0;

    /// Limits kernels to the blocks that fill this many multiprocessors of a GPU, and NCCL to as
    /// many CTAs; 0: no limit. Applies to later launches and connections. A device without
    /// multiprocessors has nothing to limit.
    virtual void limit_multiprocessors(int) noexcept {}

    /// Aligned to at least 256 bytes, with undefined contents; empty for 0 bytes. May wait for the
    /// device, as release() may, so callers allocate scratch once and keep it.
    virtual std::span<std::byte> allocate(int device, std::size_t bytes) = 0;
    /// Releases what allocate() returned. No stream may still use it.
    virtual void release(int device, std::span<std::byte> memory) noexcept = 0;
    /// Host memory that all devices reach; otherwise like allocate().
    virtual std::span<std::byte> allocate_pinned(int device, std::size_t bytes) = 0;
    virtual void release_pinned(int device, std::span<std::byte> memory) noexcept = 0;
    virtual MemoryLocation location_of(const void* address) const = 0;

    /// to = from, between host and device in any direction, in stream order. Equal sizes, no
    /// overlap. Host memory that is not pinned may make the caller wait.
    virtual void copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) = 0;
    /// Each to = from, finished. Kernels on the stream's device must reach all memory. No `to`
    /// overlaps anything else, but it may be its own `from`. A copy that is finished holds whole,
    /// aligned elements of a floating dtype or, without a scale, of i64 or u64 (averages of
    /// narrower integers are summed as i64). Many small copies take few kernels.
    virtual void copy_all(Stream& stream, std::span<const Copy> copies, const Finish& finish) = 0;
    /// Sets each element of the memory. An element has 1, 2, 4 or 8 bytes, and the memory a
    /// multiple of that.
    virtual void fill(Stream& stream, std::span<std::byte> memory,
                      std::span<const std::byte> element) = 0;
    /// Each output = the inputs, reduced, in stream order: the bits of the host's combine_tree().
    /// At least one input and one output. Equal sizes, whole aligned elements; an output may be one
    /// of the inputs, otherwise nothing overlaps. Throws Error(invalid_argument) for an op that the
    /// dtype does not have.
    virtual void reduce(Stream& stream, const Reduction& reduction,
                        std::span<const std::span<std::byte>> outputs,
                        std::span<const std::span<const std::byte>> inputs) = 0;

    /// Adds up the squares of the elements in f64, in the order of SumOrder: the same bits on
    /// every device. `scratch` is SumOrder::scratch_bytes on the device, for the stream alone until
    /// this is done; `into` is in pinned memory.
    virtual void sum_of_squares(Stream& stream, DType dtype, std::span<const std::byte> memory,
                                std::span<std::byte> scratch, double& into) = 0;

    /// Sets a word when the work before it is done. A thread or stream that sees the value sees the
    /// results of that work too.
    virtual void write(Stream& stream, Word& word, std::uint32_t value) = 0;
    /// Makes later work wait until the word has reached the value. A host thread may bring it there
    /// with advance(), which makes no device call.
    virtual void wait(Stream& stream, Word& word, std::uint32_t value) = 0;
    /// Writes all of `writes`, then waits for all of `waits`.
    virtual void write_then_wait(Stream& stream, std::span<const WordValue> writes,
                                 std::span<const WordValue> waits) {
        for (const auto& [word, value] : writes) write(stream, *word, value);
        for (const auto& [word, value] : waits) wait(stream, *word, value);
    }
    /// Sets up the device's context once for all calls on this thread while the result lives. No
    /// user code may run on the thread meanwhile.
    [[nodiscard]] virtual std::shared_ptr<const void> prepare_calls(int) { return nullptr; }

    virtual std::shared_ptr<Stream> make_stream(int device) = 0;
    /// A user's stream as a Stream. The user still owns it, and it must outlive the result. A null
    /// handle is the device's default stream.
    virtual std::shared_ptr<Stream> wrap(StreamRef stream) = 0;

    /// Valid as long as the driver.
    virtual MemorySharing& sharing() noexcept = 0;
    /// NCCL, which lives as long as the process. `wanted`: the value of GUOZHUANG_NCCL: auto, off,
    /// or a file.
    virtual OrReason<Nccl*> nccl(const std::string& wanted) {
        return {.reason = "NCCL cannot reach such a device (GUOZHUANG_NCCL=" + wanted + ")"};
    }
};

/// Counts a word up from a host thread, for streams that wait for it.
inline void advance(Word& word, std::uint32_t by) noexcept {
    word.fetch_add(by, std::memory_order_acq_rel);
    word.notify_all();  // a driver's streams may be threads
}

}  // namespace guozhuang::device
