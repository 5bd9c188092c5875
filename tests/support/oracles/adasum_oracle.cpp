#include "support/oracles/adasum_oracle.hpp"

namespace guozhuang::test {

double epsilon_of(DType dtype) {
    switch (dtype) {
        case DType::f16: return 0x1p-10;
        case DType::bf16: return 0x1p-7;
        case DType::f32: return 0x1p-23;
        default: return 0x1p-52;
    }
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

AdasumTerm adasum_pair(const AdasumTerm& a, const AdasumTerm& b, double rounding) {
    const double ab = dot(a.values, b.values), aa = dot(a.values, a.values),
                 bb = dot(b.values, b.values);
    // A computation that rounds may find no zero.
    if (aa == 0) return {b.values, a.error == 0 ? b.error : HUGE_VAL};
    if (bb == 0) return {a.values, b.error == 0 ? a.error : HUGE_VAL};
    const double of_a = 1 - ab / (2 * aa), of_b = 1 - ab / (2 * bb), ratio = std::sqrt(aa / bb);
    AdasumTerm result{a.values, 0};
    for (std::size_t i = 0; i < result.values.size(); ++i)
        result.values[i] = of_a * a.values[i] + of_b * b.values[i];
    result.error = a.error * (1.5 + 1.5 / ratio) + b.error * (1.5 + 1.5 * ratio) +
                   3 * rounding * (std::abs(of_a) * std::sqrt(aa) + std::abs(of_b) * std::sqrt(bb));
    return result;
}

AdasumTerm adasum_of(std::span<const Tensor> contributions, double prescale) {
    const auto dtype = contributions.front().dtype;
    if (contributions.size() == 1) {
        AdasumTerm term;
        for (std::size_t i = 0; i < contributions[0].count(); ++i)
            term.values.push_back(prescale * real_at(contributions[0], i));
        if (prescale != 1)
            term.error = epsilon_of(dtype) * std::sqrt(dot(term.values, term.values));
        return term;
    }
    const auto half = std::bit_floor(contributions.size() - 1);
    return adasum_pair(adasum_of(contributions.first(half), prescale),
                       adasum_of(contributions.subspan(half), prescale),
                       dtype == DType::f64 ? epsilon_of(DType::f64) : epsilon_of(DType::f32));
}

}  // namespace guozhuang::test
