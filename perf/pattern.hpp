#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <optional>
#include <span>
#include <vector>

namespace guozhuang::perf {

/// Inputs whose reduction does not depend on the order, and with them what must come out, to the
/// bit.
///
/// Rank r's element i is drawn by a hash of r and i modulo a prime: a block that lands in the wrong
/// place, comes from the wrong rank or is added twice does not pass. Integers are of any size, so
/// that sums and products wrap; floats are one of four small whole numbers, so that every partial
/// reduction is exact. `first` is the index of a buffer's first element: starting elsewhere each
/// time tells a result from the one before it. Constant after construction.
class Pattern {
public:
    /// Without an op there are only the ranks' own elements. Throws std::invalid_argument if so
    /// many ranks cannot have exact results.
    Pattern(DType dtype, std::optional<ReduceOp> op, int ranks);

    void fill(std::span<std::byte> buffer, int rank, std::size_t first) const;
    /// Elements of the buffer that are not rank's.
    std::uint64_t wrong(std::span<const std::byte> buffer, int rank, std::size_t first) const;
    /// Elements of the buffer that are not the reduction of all ranks'.
    std::uint64_t wrong_reduced(std::span<const std::byte> buffer, std::size_t first) const;

private:
    using Table = std::vector<std::byte>;  ///< one period
    std::uint64_t differences(const Table& table, std::span<const std::byte> buffer,
                              std::size_t first) const;

    std::size_t element_bytes_;
    std::vector<Table> of_rank_;
    Table reduced_;
};

}  // namespace guozhuang::perf
