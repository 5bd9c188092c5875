#include "backends/rows.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <limits>
#include <numeric>

namespace guozhuang::backends {

std::size_t row_bytes(const TensorView& tensor) {
    return count_of(std::span(tensor.shape).subspan(1)) * size_of(tensor.dtype);
}

bool fits_output(const engine::BundleEntry& entry, std::span<const std::int64_t> rows, int rank) {
    const auto input = std::span<const std::byte>(entry.tensor.memory());
    const auto output = std::span<const std::byte>(entry.output);
    const auto bytes_of = [&](std::span<const std::int64_t> some) {
        return static_cast<std::size_t>(
                   std::accumulate(some.begin(), some.end(), std::int64_t{0})) *
               row_bytes(entry.tensor);
    };
    if (output.size() != bytes_of(rows)) return false;
    const auto before = static_cast<std::size_t>(rank);
    const bool are_apart = input.empty() || input.data() >= output.data() + output.size() ||
                           output.data() >= input.data() + input.size();
    // A reduce_scatter counts its own rows only; the caller's checks know where these lie.
    if (are_apart || rows.size() <= before) return true;
    return input.data() == output.data() + bytes_of(rows.first(before));
}

void require_possible(std::span<const std::int64_t> rows, std::size_t row_bytes,
                      const std::function<int(int)>& world_rank) {
    auto left = static_cast<std::int64_t>(std::numeric_limits<std::int64_t>::max() /
                                          std::max<std::size_t>(row_bytes, 1));
    for (std::size_t group_rank = 0; group_rank < rows.size(); ++group_rank) {
        if (rows[group_rank] >= 0 && rows[group_rank] <= left) {
            left -= rows[group_rank];
            continue;
        }
        const int rank = world_rank(static_cast<int>(group_rank));
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} says that it has {} rows", rank, rows[group_rank]),
                    {.ranks = {rank}});
    }
}

std::size_t describe(Result& result, const TensorView& input, std::span<const std::int64_t> rows) {
    result.dtype = input.dtype;
    result.rows.assign(rows.begin(), rows.end());
    result.shape = input.shape;
    result.shape[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    return static_cast<std::size_t>(result.shape[0]) * row_bytes(input);
}

}  // namespace guozhuang::backends
