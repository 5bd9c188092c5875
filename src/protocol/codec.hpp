#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace guozhuang::protocol {

using Bytes = std::vector<std::byte>;

/// Limits for the contents of messages: no received message makes this rank allocate more.
inline constexpr std::size_t max_name_bytes = 64u << 10;
/// Longest reason of a shutdown; longer ones are cut.
inline constexpr std::size_t max_reason_bytes = 4096;
inline constexpr std::size_t max_dimensions = 64;
inline constexpr std::size_t max_tensors = 1u << 20;
inline constexpr int max_ranks = 1 << 20;
/// Longest description of a request: at most half of the wire's longest control message, which
/// leaves room for the rest of the message.
inline constexpr std::size_t max_description_bytes = 32u << 20;

namespace detail {
/// Whether a number is an enumerator: compilers print one as "Colour::blue", others as "(Colour)3".
template <auto value>
consteval bool is_enumerator() noexcept {
    const std::string_view text = __PRETTY_FUNCTION__;
    const auto last_word = text.find_last_of(":)= ") + 1;
    return text[last_word] < '0' || text[last_word] > '9';
}
}  // namespace detail

/// Whether an enumeration can travel: its enumerators must be the numbers from 0 to last_of(Enum),
/// a function beside it.
template <class Enum>
consteval bool knows_its_last() noexcept {
    constexpr auto end = static_cast<std::size_t>(last_of(Enum{})) + 1;
    return []<std::size_t... number>(std::index_sequence<number...>) {
        return (detail::is_enumerator<static_cast<Enum>(number)>() && ...);
    }(std::make_index_sequence<end>()) &&
           !detail::is_enumerator<static_cast<Enum>(end)>();
}

/// Appends values to a message: unsigned integers in LEB128, doubles as their bits, strings and
/// byte strings after their length.
class Writer {
public:
    Writer() { out_.reserve(usual_bytes); }
    void number(std::uint64_t value);
    void signed_number(std::int64_t value);
    void real(double value) { fixed(std::bit_cast<std::uint64_t>(value)); }
    void fixed(std::uint64_t value);  ///< eight bytes
    void string(std::string_view text);
    void bytes(std::span<const std::byte> data);
    void ranks(std::span<const int> ranks);
    /// A world rank, or -1 for none.
    void culprit(int rank) { number(static_cast<std::uint64_t>(rank + 1)); }

    template <class Enum>
        requires std::is_enum_v<Enum>
    void enumerator(Enum value) {
        number(static_cast<std::uint64_t>(value));
    }

    bool empty() const noexcept { return out_.empty(); }
    std::size_t size() const noexcept { return out_.size(); }
    Bytes take() { return std::exchange(out_, {}); }
    /// Truncates the message to that size.
    void cut(std::size_t size) noexcept {
        out_.erase(out_.begin() + std::ptrdiff_t(size), out_.end());
    }

private:
    static constexpr std::size_t usual_bytes = 128;

    Bytes out_;
};

/// Reads the values back, with bounds checks: every function throws Error(wire) if the message is
/// truncated, a value is out of range, or a number is not in its shortest form. So a Reader accepts
/// only bytes that a Writer can write.
class Reader {
public:
    explicit Reader(std::span<const std::byte> data) noexcept : data_(data) {}

    std::uint64_t number(std::uint64_t highest = ~std::uint64_t{0});
    /// Reads an element count. Each element takes at least one byte, so a count above the remaining
    /// bytes is malformed, and reserving memory for the elements is safe.
    std::size_t count(std::size_t highest) {
        return static_cast<std::size_t>(number(std::min(highest, data_.size())));
    }
    int rank(int size) { return static_cast<int>(number(static_cast<std::uint64_t>(size) - 1)); }
    std::int64_t signed_number(std::int64_t lowest = std::numeric_limits<std::int64_t>::min(),
                               std::int64_t highest = std::numeric_limits<std::int64_t>::max());
    double real() { return std::bit_cast<double>(fixed()); }
    std::uint64_t fixed();
    std::string string(std::size_t longest = max_name_bytes);
    Bytes bytes();
    std::vector<int> ranks(int size);  ///< of this many
    int culprit() { return static_cast<int>(number(std::numeric_limits<int>::max())) - 1; }

    template <class Enum>
        requires std::is_enum_v<Enum>
    Enum enumerator() {
        static_assert(knows_its_last<Enum>(), "last_of() is not the last enumerator, or has a gap");
        return static_cast<Enum>(number(static_cast<std::uint64_t>(last_of(Enum{}))));
    }

    bool at_end() const noexcept { return data_.empty(); }
    void expect_end() const;

private:
    std::span<const std::byte> take(std::uint64_t length);
    std::span<const std::byte> data_;
};

}  // namespace guozhuang::protocol
