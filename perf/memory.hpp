#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace guozhuang::perf {

/// Zeroed memory whose pages are all there: no first touch falls into a measurement. Aligned to cache lines, as a trainer's tensors are.
class Memory {
public:
    static constexpr std::size_t alignment = 64;

    explicit Memory(std::size_t bytes) : bytes_(bytes), data_(std::aligned_alloc(alignment, round_up(bytes))) {
        if (data_ == nullptr) throw std::bad_alloc();
        std::memset(data_.get(), 0, round_up(bytes));
    }

    std::span<std::byte> all() const noexcept { return {static_cast<std::byte*>(data_.get()), bytes_}; }

    /// The next multiple of the alignment, at least one.
    static constexpr std::size_t round_up(std::size_t bytes) noexcept {
        return (bytes / alignment + (bytes % alignment != 0 || bytes == 0)) * alignment;
    }

private:
    struct Free {
        void operator()(void* data) const noexcept { std::free(data); }
    };
    std::size_t bytes_;
    std::unique_ptr<void, Free> data_;
};

}  // namespace guozhuang::perf
