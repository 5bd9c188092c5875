// Conversions between floats of 16 and 32 bits.
#include <cmath>
#include <functional>
#include <guozhuang/convert.hpp>
#include <limits>
#include <string>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

template <class To, class From = float>
std::vector<To> converted(const std::vector<From>& values) {
    std::vector<To> result(values.size());
    convert(values, result);
    return result;
}

template <class Short>
std::vector<float> to_f32(const std::vector<Short>& values) {
    return converted<float>(values);
}

std::string refused_conversion(const std::function<void()>& act) {
    const auto error = error_of(act);
    return error && error->code() == ErrorCode::invalid_argument ? error->what() : "none";
}

}  // namespace

TEST_CASE("f16 and bf16 become f32 exactly, and f32 is rounded to nearest") {
    std::vector<Half> halves(65536);
    std::vector<BFloat16> brains(65536);
    for (std::size_t i = 0; i < halves.size(); ++i)
        halves[i].bits = brains[i].bits = static_cast<std::uint16_t>(i);
    const auto from_halves = to_f32(halves), from_brains = to_f32(brains);
    const auto halves_again = converted<Half>(from_halves);
    const auto brains_again = converted<BFloat16>(from_brains);
    for (std::size_t i = 0; i < halves.size(); ++i) {
        if (!std::isnan(from_halves[i])) REQUIRE(halves_again[i] == halves[i]);
        if (!std::isnan(from_brains[i])) REQUIRE(brains_again[i] == brains[i]);
    }
    CHECK(to_f32(
              converted<Half>({1 + 0x1p-11F, 1 + 0x3p-11F, 65519, 65520, -0x1p-25F, 0x1.1p-25F})) ==
          std::vector<float>{1, 1 + 0x1p-9F, 65504, std::numeric_limits<float>::infinity(), -0.F,
                             0x1p-24F});
    CHECK(to_f32(converted<BFloat16>({1 + 0x1p-8F, 1 + 0x3p-8F})) ==
          std::vector<float>{1, 1 + 0x1p-6F});
    std::vector<double> doubles{1, 2}, same(2);
    convert(doubles, same);
    CHECK(same == std::vector<double>{1, 2});
    CHECK(converted<Half>({}).empty());
}

TEST_CASE("conversions that are not supported are refused") {
    std::vector<float> floats(2), three(3);
    std::vector<double> doubles(2);
    std::vector<Half> halves(2);
    CHECK(refused_conversion([&] { convert(floats, doubles); }) ==
          "convert: f32 to f64 is not supported: f16 and bf16 become f32, and f32 either");
    CHECK(refused_conversion([&] { convert(three, halves); }) ==
          "convert: 3 elements cannot become 2");
    auto on_device = TensorView(halves);
    on_device.device = {DeviceKind::cuda, 1};
    CHECK(refused_conversion([&] { convert(floats, on_device); }) ==
          "convert: a tensor is on cuda 1; both must be in host memory");
}
