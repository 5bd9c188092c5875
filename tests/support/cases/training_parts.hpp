#pragma once

#include <cmath>
#include <cstddef>
#include <guozhuang/error.hpp>
#include <guozhuang/tensor.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/cases/operation_cases.hpp"

/// Parameters for tests of the parts of training that average values.
namespace guozhuang::test {

/// How far a rank's element moves in a step.
inline double drift_of(int rank, int step, std::size_t element) {
    return std::sin(1.0 + rank) * (1 + step) / 16 + static_cast<double>(element % 7) / 8 * rank;
}

/// Parameters of one rank: of both dtypes, and of sizes that divide by no number of ranks.
struct Weights {
    std::vector<float> a{0.5F, -1, 2, 3, -4, 5, 0.25F};
    std::vector<double> b{1, -2, 0.125, 8, 3};

    std::vector<Parameter> parameters() { return {{"a", a, {}}, {"b", b, {}}}; }
    void drift(int rank, int step) {
        std::size_t i = 0;
        for (auto& value : a) value += static_cast<float>(drift_of(rank, step, i++));
        for (auto& value : b) value += drift_of(rank, step, i++);
    }
    std::vector<double> flat() const {
        std::vector<double> all(a.begin(), a.end());
        all.insert(all.end(), b.begin(), b.end());
        return all;
    }
    std::string bytes() const {
        return std::string(reinterpret_cast<const char*>(a.data()), a.size() * sizeof(float)) +
               std::string(reinterpret_cast<const char*>(b.data()), b.size() * sizeof(double));
    }
};

/// Whether they differ by rounding to f32 at most.
inline bool are_close(const std::vector<double>& values, const std::vector<double>& expected) {
    if (values.size() != expected.size()) return false;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!(std::abs(values[i] - expected[i]) <= 4e-6 * (1 + std::abs(expected[i]))))
            return false;
    return true;
}

/// "departed: the message" of the Error that act() throws; empty if it throws none.
template <class Act>
std::string error_text(const Act& act) {
    try {
        act();
    } catch (const Error& error) {
        return text_of(name_of(error.code()), ": ", error.what());
    }
    return {};
}

/// Parameters that such a part refuses, each with the reason.
inline std::vector<std::pair<std::vector<Parameter>, std::string>> unusable_parameters() {
    static std::vector<float> memory(8);
    static std::vector<std::int32_t> integers(2);
    TensorView on_device(memory), with_strides(memory);
    on_device.device = {DeviceKind::cuda, 1};
    with_strides.strides = {2};
    const std::span<float> first(memory.data(), 5), second(memory.data() + 4, 4);
    return {{{}, "there are no parameters"},
            {{{"", memory, {}}}, "a parameter has no name"},
            {{{"w", first, {}}, {"w", second, {}}}, "two parameters are called 'w'"},
            {{{"w", on_device, {}}},
             "the value of 'w' is on cuda 1; only values in host memory are averaged here"},
            {{{"w", integers, {}}}, "the value of 'w' is i32; only f32 and f64 are averaged here"},
            {{{"w", with_strides, {}}}, "the value of 'w' is not contiguous"},
            {{{"v", first, {}}, {"w", second, {}}}, "the values of 'v' and 'w' overlap"}};
}

}  // namespace guozhuang::test
