#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <guozhuang/handle.hpp>
#include <guozhuang/tensor.hpp>
#include <span>

#include "collectives/concepts/operation_site.hpp"
#include "engine/backend.hpp"

/// Rows of dim 0, in which all_gather, all_to_all and reduce_scatter count.
namespace guozhuang::backends {

/// Bytes of one row.
std::size_t row_bytes(const TensorView& tensor);

/// The entry as an operation sees it: with rows, if it has a result.
inline SiteTensor site_tensor(const engine::BundleEntry& entry) {
    const auto& [tensor, splits, result, output] = entry;
    SiteTensor given{.memory = tensor.memory(), .dtype = tensor.dtype, .splits = splits};
    if (result) {
        given.rows = tensor.shape.front();
        given.row_bytes = row_bytes(tensor);
    }
    return given;
}

/// Whether a result of this many rows from each rank fits the entry's output: the sizes are equal,
/// and if the input of an all_gather lies in the output, it lies where this rank's rows go.
bool fits_output(const engine::BundleEntry& entry, std::span<const std::int64_t> rows, int rank);

/// Checks row counts received from other ranks: none is negative, and their total size does not
/// overflow. Otherwise throws Error(wire), which names the rank by `world_rank`.
void require_possible(std::span<const std::int64_t> rows, std::size_t row_bytes,
                      const std::function<int(int)>& world_rank);

/// Sets the dtype, rows and shape of a result with these rows from each rank, and returns its size
/// in bytes.
std::size_t describe(Result& result, const TensorView& input, std::span<const std::int64_t> rows);

}  // namespace guozhuang::backends
