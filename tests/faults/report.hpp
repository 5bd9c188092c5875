#pragma once

#include <cstddef>
#include <cstdlib>
#include <fmt/format.h>
#include <guozhuang/guozhuang.hpp>
#include <poll.h>
#include <string>
#include <string_view>
#include <time.h>
#include <unistd.h>

/// Lines that a worker writes about itself, for faults.py.
namespace guozhuang::test {

namespace gz = guozhuang;

inline std::size_t bytes = 4;  ///< of the tensors
inline int output = STDOUT_FILENO;

inline double now_ms() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

inline std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c;
    }
    return result;
}

/// One write for each line, so that those of several ranks do not mix.
inline void say(const std::string& line) {
    const auto whole = line + "\n";
    if (::write(output, whole.data(), whole.size()) < 0) _exit(9);
}

inline void say_error(const gz::Session& session, const std::string& what, const gz::Error& error) {
    const bool has_its_class = (error.code() == gz::ErrorCode::rank_died) ==
                               (dynamic_cast<const gz::RankDied*>(&error) != nullptr);
    say(fmt::format(R"({{"rank": {}, "waited_for": "{}", "code": "{}", "culprit": {}, )"
                    R"("tensor": "{}", "text": "{}", "ms": {:.3f}}})",
                    session.rank(), what,
                    has_its_class ? name_of(error.code()) : "of the wrong class",
                    error.ranks().empty() ? -1 : error.ranks().front(), escaped(error.tensor()),
                    escaped(error.what()), now_ms()));
}

inline void stay_away(int ms) {
    ::poll(nullptr, 0, ms);
}

template <class Value>
void require_equal(Value value, Value expected, const std::string& what) {
    if (value == expected) return;
    say(fmt::format(R"({{"wrong": "{}: {} instead of {}"}})", what, value, expected));
    _exit(8);
}

}  // namespace guozhuang::test
