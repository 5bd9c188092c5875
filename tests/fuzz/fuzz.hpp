#pragma once

#include <algorithm>
#include <cstddef>
#include <guozhuang/error.hpp>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace guozhuang::fuzz {

using Input = std::span<const std::byte>;
using Seed = std::vector<std::byte>;

/// Defined by each program: decode() tries an input, and seeds() gives valid inputs to begin with.
/// Any exception from decode() is a finding.
void decode(Input input);
std::vector<Seed> seeds();

/// Requires a property of every input. If it does not hold, the program ends, which is a finding.
void require(bool holds, std::string_view what);

/// Whether it throws an Error of one of these codes.
template <class Attempt>
bool refused(std::initializer_list<ErrorCode> codes, Attempt&& attempt) try {
    attempt();
    return false;
} catch (const Error& error) {
    if (std::ranges::find(codes, error.code()) == codes.end()) throw;
    return true;
}

/// The next bytes of the input, or what is left of it.
Input take(Input& input, std::size_t count);
/// The next byte, 0 at the end: for choices.
unsigned choice(Input& input);
/// Messages within an input: one byte for the choice that goes with it, two for its length, and its
/// bytes.
struct Message {
    unsigned choice = 0;
    Input bytes;
};
Message next_message(Input& input);
void append_message(Seed& seed, unsigned choice, Input bytes);

inline Input bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}
inline std::string_view text_of(Input bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Seed seed_of(std::string_view text) {
    const auto bytes = bytes_of(text);
    return {bytes.begin(), bytes.end()};
}

}  // namespace guozhuang::fuzz
