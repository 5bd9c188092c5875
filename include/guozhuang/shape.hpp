#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <vector>

namespace guozhuang {

/// The extents of a tensor, outermost first; empty for a 0-dimensional one (one element). A
/// contiguous range of std::int64_t, like a std::vector. It stores up to four extents inline, so
/// most shapes allocate nothing.
class Shape {
public:
    using value_type = std::int64_t;

    Shape() = default;
    Shape(std::initializer_list<std::int64_t> extents) : Shape(extents.begin(), extents.end()) {}
    /// The extents that a vector, span or array holds.
    template <std::ranges::contiguous_range R>
        requires(std::same_as<std::ranges::range_value_t<R>, std::int64_t> &&
                 !std::same_as<std::remove_cvref_t<R>, Shape>)
    // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
    Shape(R&& extents) : Shape(std::ranges::data(extents), std::ranges::size(extents)) {}
    template <std::contiguous_iterator I>
        requires std::same_as<std::iter_value_t<I>, std::int64_t>
    Shape(I first, I last)
        : Shape(std::to_address(first), static_cast<std::size_t>(last - first)) {}

    std::size_t size() const noexcept { return many_.empty() ? few_count_ : many_.size(); }
    bool empty() const noexcept { return size() == 0; }
    std::int64_t* data() noexcept { return many_.empty() ? few_.data() : many_.data(); }
    const std::int64_t* data() const noexcept { return many_.empty() ? few_.data() : many_.data(); }
    std::int64_t* begin() noexcept { return data(); }
    const std::int64_t* begin() const noexcept { return data(); }
    std::int64_t* end() noexcept { return data() + size(); }
    const std::int64_t* end() const noexcept { return data() + size(); }
    std::int64_t& operator[](std::size_t dimension) & noexcept { return data()[dimension]; }
    const std::int64_t& operator[](std::size_t dimension) const& noexcept {
        return data()[dimension];
    }
    std::int64_t operator[](std::size_t dimension) && noexcept { return data()[dimension]; }
    std::int64_t& front() & noexcept { return data()[0]; }
    const std::int64_t& front() const& noexcept { return data()[0]; }
    std::int64_t front() && noexcept { return data()[0]; }
    std::int64_t& back() & noexcept { return data()[size() - 1]; }
    const std::int64_t& back() const& noexcept { return data()[size() - 1]; }
    std::int64_t back() && noexcept { return data()[size() - 1]; }

    /// New extents are 0.
    void resize(std::size_t dimensions) {
        if (dimensions > few_.size()) {
            if (many_.empty()) many_.assign(begin(), end());
            many_.resize(dimensions);
            few_count_ = 0;
            return;
        }
        const auto kept = std::span(*this).first(std::min(size(), dimensions));
        if (!many_.empty()) std::ranges::copy(kept, few_.begin());
        std::ranges::fill(std::span(few_).subspan(kept.size()), 0);
        few_count_ = dimensions;
        many_.clear();
    }
    void push_back(std::int64_t extent) { emplace_back() = extent; }
    std::int64_t& emplace_back() & {
        resize(size() + 1);
        return back();
    }

    friend bool operator==(const Shape& one, const Shape& other) noexcept {
        return std::ranges::equal(one, other);
    }

private:
    Shape(const std::int64_t* first, std::size_t dimensions) {
        resize(dimensions);
        std::ranges::copy(std::span(first, dimensions), data());
    }

    std::size_t few_count_ = 0;  ///< if there are not many
    std::array<std::int64_t, 4> few_{};
    std::vector<std::int64_t> many_;  ///< more than four, or empty
};

/// The number of elements of a shape: the product of its extents, 1 if 0-dimensional.
constexpr std::size_t count_of(std::span<const std::int64_t> shape) noexcept {
    std::size_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
}

}  // namespace guozhuang
