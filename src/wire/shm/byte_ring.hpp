#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <guozhuang/error.hpp>
#include <span>

namespace guozhuang::wire {

/// Bytes from one rank to another, in order, through memory that both have mapped. Only one side
/// changes each counter, after the bytes that it counts, so a side that dies at any point leaves a
/// state with which the other can go on. (L. Lamport: Proving the correctness of multiprocess
/// programs, IEEE Transactions on Software Engineering 3(2), 1977.)
///
/// This is the part in shared memory, in front of the bytes, whose number is a power of two. Each
/// side also has its own view.
struct ByteRing {
    alignas(64) std::atomic<std::uint64_t> written{0};
    std::atomic<std::uint32_t> writer_waits{0};  ///< for room; the reader clears it
    alignas(64) std::atomic<std::uint64_t> read{0};
};

/// The writing side. One thread at a time.
class RingWriter {
public:
    RingWriter(ByteRing& ring, std::span<std::byte> bytes)
        : ring_(ring), bytes_(bytes), written_(ring.written), read_(ring.read) {}

    /// Whether there is room for this many bytes; if not, the reader will say when there is more
    /// (see RingReader::release). Throws Error(wire) if the other side has corrupted its counter.
    bool has_room(std::size_t count) {
        if (room() >= count) return true;
        look();
        if (room() >= count) return true;
        ring_.writer_waits.store(1, std::memory_order_seq_cst);
        look();  // the reader may have looked before the store
        return room() >= count;
    }
    /// How many bytes fit, as far as this side knows.
    std::size_t room() const noexcept {
        return bytes_.size() - static_cast<std::size_t>(written_ - read_);
    }
    /// Writes bytes, not more than there is room for. The reader sees them after publish().
    void put(std::span<const std::byte> some) noexcept {
        const auto at = static_cast<std::size_t>(written_) & (bytes_.size() - 1);
        const auto first = std::min(some.size(), bytes_.size() - at);
        if (first > 0) std::memcpy(bytes_.data() + at, some.data(), first);
        if (some.size() > first)
            std::memcpy(bytes_.data(), some.data() + first, some.size() - first);
        written_ += some.size();
    }
    /// News as base::nudge() wants them.
    void publish() noexcept { ring_.written.store(written_, std::memory_order_seq_cst); }

private:
    void look() {
        read_ = ring_.read.load(std::memory_order_seq_cst);
        if (written_ - read_ > bytes_.size())
            throw Error(ErrorCode::wire, "the memory for messages is corrupt");
    }

    ByteRing& ring_;
    std::span<std::byte> bytes_;
    std::uint64_t written_, read_;
};

/// The reading side. One thread at a time.
class RingReader {
public:
    RingReader(ByteRing& ring, std::span<const std::byte> bytes)
        : ring_(ring), bytes_(bytes), written_(ring.written), read_(ring.read) {}

    /// How many bytes have arrived. Throws Error(wire) if the other side has corrupted its counter.
    std::size_t available() {
        written_ = ring_.written.load(std::memory_order_seq_cst);
        if (written_ - read_ > bytes_.size())
            throw Error(ErrorCode::wire, "the memory for messages is corrupt");
        return static_cast<std::size_t>(written_ - read_);
    }
    /// Takes as many bytes as have arrived and fit, and returns how many. The writer gets the room
    /// after release().
    std::size_t take(std::span<std::byte> some) {
        const auto count = std::min(some.size(), available());
        const auto at = static_cast<std::size_t>(read_) & (bytes_.size() - 1);
        const auto first = std::min(count, bytes_.size() - at);
        if (first > 0) std::memcpy(some.data(), bytes_.data() + at, first);
        if (count > first) std::memcpy(some.data() + first, bytes_.data(), count - first);
        read_ += count;
        return count;
    }
    /// Skips all bytes that have arrived.
    void skip() { read_ += available(); }
    /// Gives the room back. Returns whether the writer waits for it, and must be woken even if it
    /// has nothing else to do.
    bool release() noexcept {
        ring_.read.store(read_, std::memory_order_seq_cst);
        return ring_.writer_waits.load(std::memory_order_seq_cst) != 0 &&
               ring_.writer_waits.exchange(0) != 0;
    }

private:
    ByteRing& ring_;
    std::span<const std::byte> bytes_;
    std::uint64_t written_, read_;
};

}  // namespace guozhuang::wire
