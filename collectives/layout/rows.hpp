#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Rows of dim 0, in which all_gather, all_to_all and reduce_scatter count.
namespace guozhuang {

/// The memory cut along dim 0 into parts of these numbers of rows.
template <class Byte>
std::vector<std::span<Byte>> cut_rows(std::span<Byte> memory, std::span<const std::int64_t> rows,
                                      std::size_t row_bytes) {
    std::vector<std::span<Byte>> blocks;
    blocks.reserve(rows.size());
    for (const auto count : rows) {
        blocks.push_back(memory.first(static_cast<std::size_t>(count) * row_bytes));
        memory = memory.subspan(blocks.back().size());
    }
    return blocks;
}

/// How many of these rows each rank gets in a reduce_scatter: its split or, without splits, an
/// equal part, with one more for the first ranks.
inline std::vector<std::int64_t> reduce_scatter_rows(std::int64_t rows,
                                                     std::span<const std::int64_t> splits,
                                                     int ranks) {
    if (!splits.empty()) return {splits.begin(), splits.end()};
    std::vector<std::int64_t> each(static_cast<std::size_t>(ranks), rows / ranks);
    for (auto& one_more : std::span(each).first(static_cast<std::size_t>(rows % ranks))) ++one_more;
    return each;
}

}  // namespace guozhuang
