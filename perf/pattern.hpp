#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <optional>
#include <span>
#include <vector>

namespace guozhuang::perf {

/// Inputs whose reduction does not depend on the order, and what the result must be, to the bit.
/// Constant after construction.
///
/// Rank r's element i comes from a hash of r and i modulo a prime, so a block at a wrong offset,
/// from a wrong rank, or added twice is found. Integers are of any size, so sums and products wrap.
/// Floats are one of four small whole numbers, so every partial reduction is exact. `first` is the
/// index of a buffer's first element: another one each time tells a result from the one before.
class Pattern {
public:
    /// Without an op the pattern has only the ranks' elements. Throws std::invalid_argument if
    /// results of so many ranks cannot be exact.
    Pattern(DType dtype, std::optional<ReduceOp> op, int ranks);

    void fill(std::span<std::byte> buffer, int rank, std::size_t first) const;
    /// How many elements of the buffer are not the rank's.
    std::uint64_t wrong(std::span<const std::byte> buffer, int rank, std::size_t first) const;
    /// How many elements of the buffer are not the reduction of all ranks' elements.
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
