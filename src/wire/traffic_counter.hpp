#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "wire/messages.hpp"

namespace guozhuang::wire {

/// Counts what this rank has sent. Thread-safe.
class TrafficCounter {
public:
    void count_message(std::size_t bytes) noexcept {
        count_bytes(bytes);
        messages_.fetch_add(1, std::memory_order_relaxed);
    }
    void count_bytes(std::size_t bytes) noexcept {
        bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
    Messages::Traffic total() const noexcept { return {bytes_.load(), messages_.load()}; }

private:
    std::atomic<std::uint64_t> bytes_{0}, messages_{0};
};

}  // namespace guozhuang::wire
