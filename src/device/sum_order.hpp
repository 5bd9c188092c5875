#pragma once

#include <algorithm>
#include <cstddef>

namespace guozhuang::device {

/// The order in which a sum is added up in f64, on the host and on every device, so that all ranks
/// get the same bits. The elements are cut into groups of 16 bytes. Lane l adds up the elements of
/// groups l, l + lanes, l + 2 lanes ...; column c adds up lanes c, c + columns ...; then the
/// columns are added, all in ascending order. Missing elements and lanes count as 0.
struct SumOrder {
    static constexpr std::size_t group_bytes = 16, lanes = 65536, columns = 256;
    static constexpr std::size_t scratch_bytes = (lanes + columns) * sizeof(double);

    /// How many lanes have a group.
    static constexpr std::size_t lanes_of(std::size_t bytes) noexcept {
        return std::min(lanes, bytes / group_bytes + (bytes % group_bytes != 0 ? 1 : 0));
    }
};

}  // namespace guozhuang::device
