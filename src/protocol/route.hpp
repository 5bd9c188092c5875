#pragma once

#include <compare>
#include <cstdint>

namespace guozhuang::protocol {

/// Where a send or receive goes, seen from this rank.
struct Route {
    int peer = 0;  ///< group rank
    std::uint16_t tag = 0;
    bool sending = true;
    auto operator<=>(const Route&) const = default;
};

}  // namespace guozhuang::protocol
