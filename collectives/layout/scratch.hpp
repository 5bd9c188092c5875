#pragma once

#include <cstddef>
#include <guozhuang/error.hpp>
#include <memory>
#include <span>
#include <type_traits>

namespace guozhuang {

/// Scratch memory for an algorithm, and every buffer cut from it, starts at a multiple of this: one
/// cache line.
inline constexpr std::size_t scratch_alignment = 64;

/// `bytes` rounded up to whole cache lines: what a buffer cut from scratch takes.
constexpr std::size_t padded(std::size_t bytes) noexcept {
    return (bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
}

template <class T>
constexpr std::size_t padded_array(std::size_t count) noexcept {
    return padded(count * sizeof(T));
}

/// Cuts the caller's scratch into the buffers that an algorithm needs, so that no algorithm
/// allocates memory for data. Throws Error(internal) if there is not enough: the caller did not ask
/// for the algorithm's `*_scratch_bytes`.
class Scratch {
public:
    explicit Scratch(std::span<std::byte> memory) noexcept : left_(memory) {}

    std::span<std::byte> cut(std::size_t bytes) {
        if (padded(bytes) > left_.size())
            throw Error(ErrorCode::internal, "a collective was given too little scratch memory");
        const auto front = left_.first(bytes);
        left_ = left_.subspan(padded(bytes));
        return front;
    }

    template <class T>
    std::span<T> cut_array(std::size_t count) {
        static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= scratch_alignment);
        auto* const first = reinterpret_cast<T*>(cut(count * sizeof(T)).data());
        std::uninitialized_value_construct_n(first, count);
        return {first, count};
    }

private:
    std::span<std::byte> left_;
};

}  // namespace guozhuang
