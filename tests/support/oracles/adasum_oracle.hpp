#pragma once

#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "support/tensors/tensors.hpp"

/// Adasum by its formula, in f64, along the balanced tree over the ranks.
namespace guozhuang::test {

/// Distance of 1 to the next number.
double epsilon_of(DType dtype);

struct AdasumTerm {
    std::vector<double> values;
    double error = 0;  ///< how far off, in the 2-norm, a rounding computation may be
};

double dot(const std::vector<double>& a, const std::vector<double>& b);

/// `rounding`: the error of partial sums. A small error turns a term that is short beside the other
/// by a large angle, hence the ratios of the norms.
AdasumTerm adasum_pair(const AdasumTerm& a, const AdasumTerm& b, double rounding);

/// The adasum of all ranks' contributions, each multiplied by `prescale` in its own dtype first.
AdasumTerm adasum_of(std::span<const Tensor> contributions, double prescale = 1);

}  // namespace guozhuang::test
