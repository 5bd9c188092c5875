#include "support/oracles/reduction_oracle.hpp"

namespace guozhuang::test {

bool is_defined(ReduceOp op, DType dtype) {
    if (op == ReduceOp::adasum) return is_floating(dtype);
    return dtype != DType::boolean || op == ReduceOp::min || op == ReduceOp::max;
}

std::int64_t wrapped(DType dtype, std::uint64_t number) {
    switch (dtype) {
        case DType::i8: return static_cast<std::int8_t>(number);
        case DType::i16: return static_cast<std::int16_t>(number);
        case DType::i32: return static_cast<std::int32_t>(number);
        case DType::i64:
        case DType::u64: return static_cast<std::int64_t>(number);
        case DType::u16: return static_cast<std::uint16_t>(number);
        case DType::u32: return static_cast<std::uint32_t>(number);
        default: return static_cast<std::uint8_t>(number);
    }
}

std::int64_t reduced_integer(const std::vector<Tensor>& contributions, std::size_t i, ReduceOp op) {
    const auto dtype = contributions.front().dtype;
    const auto less = [&](std::int64_t a, std::int64_t b) {
        return dtype == DType::u64 ? static_cast<std::uint64_t>(a) < static_cast<std::uint64_t>(b)
                                   : a < b;
    };
    std::int64_t lowest = integer_at(contributions.front(), i), highest = lowest;
    std::uint64_t sum = 0, product = 1;
    for (const auto& contribution : contributions) {
        const auto element = integer_at(contribution, i);
        lowest = std::min(lowest, element, less);
        highest = std::max(highest, element, less);
        sum += static_cast<std::uint64_t>(element);
        product *= static_cast<std::uint64_t>(element);
    }
    switch (op) {
        case ReduceOp::min: return lowest;
        case ReduceOp::max: return highest;
        case ReduceOp::product: return wrapped(dtype, product);
        case ReduceOp::average:
            if (dtype == DType::u64) return static_cast<std::int64_t>(sum / contributions.size());
            // The sum of integers with fewer bits has not wrapped.
            return static_cast<std::int64_t>(sum) / static_cast<std::int64_t>(contributions.size());
        case ReduceOp::sum:
        case ReduceOp::adasum: break;
    }
    return wrapped(dtype, sum);
}

Real reduced_real(const std::vector<Tensor>& contributions, std::size_t i,
                  const Reduction& reduction) {
    double sum = 0, product = 1, absolute = 0, lowest = HUGE_VAL, highest = -HUGE_VAL;
    for (const auto& contribution : contributions) {
        const auto element = real_at(contribution, i) * reduction.prescale;
        sum += element;
        product *= element;
        absolute += std::abs(element);
        lowest = std::min(lowest, element);
        highest = std::max(highest, element);
    }
    const auto scaled = [&](double value, double magnitude) {
        return Real{value * reduction.postscale, magnitude * std::abs(reduction.postscale)};
    };
    const auto ranks = static_cast<double>(contributions.size());
    switch (reduction.op) {
        case ReduceOp::min: return scaled(lowest, std::abs(lowest));
        case ReduceOp::max: return scaled(highest, std::abs(highest));
        case ReduceOp::product: return scaled(product, std::abs(product));
        case ReduceOp::average: return scaled(sum / ranks, absolute / ranks);
        case ReduceOp::sum:
        case ReduceOp::adasum: break;  // fault_of_adasum
    }
    return scaled(sum, absolute);
}

std::string fault_of_adasum(const Tensor& result, const std::vector<Tensor>& contributions,
                            const Reduction& reduction) {
    const auto [values, error] = adasum_of(contributions, reduction.prescale);
    for (std::size_t i = 0, count = result.count(); i < count; ++i) {
        const auto value = values[i] * reduction.postscale, got = real_at(result, i);
        if (std::abs(got - value) <=
            std::abs(reduction.postscale) * error + 2 * epsilon_of(result.dtype) * std::abs(value))
            continue;
        return text_of("element ", i, " is ", got, " instead of ", value, " give or take ", error);
    }
    return {};
}

std::string fault_of(const Tensor& result, std::size_t first,
                     const std::vector<Tensor>& contributions, const Reduction& reduction) {
    if (reduction.op == ReduceOp::adasum) return fault_of_adasum(result, contributions, reduction);
    const auto roundings = static_cast<double>(contributions.size() + 2);
    for (std::size_t i = 0, count = result.count(); i < count; ++i) {
        if (is_floating(result.dtype)) {
            const auto [value, magnitude] = reduced_real(contributions, first + i, reduction);
            const auto got = real_at(result, i);
            if (std::abs(got - value) <= roundings * epsilon_of(result.dtype) * magnitude) continue;
            return text_of("element ", i, " is ", got, " instead of ", value);
        }
        const auto value = reduced_integer(contributions, first + i, reduction.op);
        if (integer_at(result, i) != value)
            return text_of("element ", i, " is ", integer_at(result, i), " instead of ", value);
    }
    return {};
}

}  // namespace guozhuang::test
