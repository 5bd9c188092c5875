#include "device/host/sum_of_squares.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "device/host/float16.hpp"
#include "device/sum_order.hpp"

namespace guozhuang::device {
namespace {

double widened(double value) noexcept {
    return value;
}
double widened(float value) noexcept {
    return value;
}
double widened(Half value) noexcept {
    return to_float(value);
}
double widened(BFloat16 value) noexcept {
    return to_float(value);
}

/// Calls action(T()) for the dtype's type.
template <class Action>
auto with_floating(DType dtype, const Action& action) {
    if (dtype == DType::f16) return action(Half());
    if (dtype == DType::bf16) return action(BFloat16());
    if (dtype == DType::f64) return action(double());
    return action(float());
}

/// Adds up the squares of each lane's elements.
template <class T>
void add_to_lanes(std::span<const T> elements, std::span<double> lanes) {
    constexpr std::size_t group = SumOrder::group_bytes / sizeof(T);
    std::size_t lane = 0;
    for (std::size_t at = 0; at < elements.size(); at += group) {
        for (const T element : elements.subspan(at, std::min(group, elements.size() - at)))
            lanes[lane] += widened(element) * widened(element);
        if (++lane == SumOrder::lanes) lane = 0;
    }
}

}  // namespace

double sum_of_squares(DType dtype, std::span<const std::byte> memory) {
    std::vector<double> lanes(SumOrder::lanes_of(memory.size()));
    with_floating(dtype, [&](auto example) {
        using T = decltype(example);
        add_to_lanes(
            std::span(reinterpret_cast<const T*>(memory.data()), memory.size() / sizeof(T)),
            std::span(lanes));
    });
    std::array<double, SumOrder::columns> columns{};
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
        columns[lane % SumOrder::columns] += lanes[lane];
    double sum = 0;
    for (const double column : columns) sum += column;
    return sum;
}

}  // namespace guozhuang::device
