#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace guozhuang {

/// SplitMix64 (Steele, Lea, Flood 2014). It gives the same numbers everywhere, which std::shuffle
/// does not promise.
class Random {
public:
    explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
    /// For the `number`-th of several sequences with the same seed.
    Random(std::uint64_t seed, std::uint64_t number) noexcept
        : Random(Random(seed).next() ^ Random(~number).next()) {}

    std::uint64_t next() noexcept {
        state_ += 0x9e3779b97f4a7c15u;
        auto z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// A number below `bound`, each equally likely.
    std::uint64_t below(std::uint64_t bound) noexcept {
        const auto rejected = -bound % bound;  // smaller draws would favour small values
        for (;;)
            if (const auto number = next(); number >= rejected) return number % bound;
    }
    /// The shuffle of Fisher and Yates.
    template <class T>
    void shuffle(std::span<T> items) noexcept {
        for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
    }

private:
    std::uint64_t state_;
};

/// The numbers below `count`, in order.
inline std::vector<std::size_t> numbers_below(std::size_t count) {
    std::vector<std::size_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    return numbers;
}

}  // namespace guozhuang
