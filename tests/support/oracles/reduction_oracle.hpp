#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/oracles/adasum_oracle.hpp"
#include "support/runner/report.hpp"
#include "support/tensors/tensors.hpp"

/// The right result of a reduction, element by element: exact for integers, in f64 with a bound for
/// floating numbers.
namespace guozhuang::test {

struct Reduction {
    ReduceOp op = ReduceOp::sum;
    double prescale = 1, postscale = 1;
};

bool is_defined(ReduceOp op, DType dtype);

/// The lowest bits of a number, read as the dtype does; of u64 the bits.
std::int64_t wrapped(DType dtype, std::uint64_t number);

std::int64_t reduced_integer(const std::vector<Tensor>& contributions, std::size_t i, ReduceOp op);

struct Real {
    double value = 0;
    double magnitude = 0;  ///< to which rounding is relative
};

Real reduced_real(const std::vector<Tensor>& contributions, std::size_t i,
                  const Reduction& reduction);

/// Says what is wrong with the whole result of an adasum; empty if nothing is.
std::string fault_of_adasum(const Tensor& result, const std::vector<Tensor>& contributions,
                            const Reduction& reduction);

/// Says what is wrong with elements `first`, `first` + 1 ... of the reduction, as far as the result
/// goes; empty if nothing is. Each of n contributions may have been rounded once by its scale and
/// once by its addition, the whole twice more: half a unit each time.
std::string fault_of(const Tensor& result, std::size_t first,
                     const std::vector<Tensor>& contributions, const Reduction& reduction);

}  // namespace guozhuang::test
