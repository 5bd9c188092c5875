// gz-perf --check is as good as its patterns: right results pass, and results that are wrong in the
// usual ways do not.

#include <algorithm>
#include <vector>

#include "perf/pattern.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using perf::Pattern;

namespace {

std::vector<float> filled(const Pattern& pattern, int rank, std::size_t first, std::size_t count) {
    std::vector<float> values(count);
    pattern.fill(std::as_writable_bytes(std::span(values)), rank, first);
    return values;
}

std::vector<float> sum_of(const Pattern& pattern, int ranks, std::size_t count) {
    std::vector<float> sum(count);
    for (int r = 0; r < ranks; ++r) {
        const auto values = filled(pattern, r, 0, count);
        for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
    }
    return sum;
}

}  // namespace

TEST_CASE("a sum passes, and one wrong element is counted as one") {
    const Pattern pattern(DType::f32, ReduceOp::sum, 3);
    auto sum = sum_of(pattern, 3, 40000);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(sum)), 0) == 0);
    sum[39999] += 1;
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(sum)), 0) == 1);
}

TEST_CASE("a sum of fewer or other ranks, a shifted one and the one before do not pass") {
    const std::size_t count = 40000, many = count / 4;
    const Pattern pattern(DType::f32, ReduceOp::sum, 3);
    const auto sum = sum_of(pattern, 3, count), two = sum_of(pattern, 2, count);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(two)), 0) > many);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(sum).subspan(1)), 0) > many);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(sum).subspan(16384)), 0) > many);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(sum)), 1) > many);
    const auto own = filled(pattern, 1, 5, count);
    CHECK(pattern.wrong(std::as_bytes(std::span(own)), 1, 5) == 0);
    CHECK(pattern.wrong(std::as_bytes(std::span(own)), 2, 5) > many);
}

TEST_CASE("the average is the sum divided by the ranks") {
    const Pattern pattern(DType::f32, ReduceOp::average, 3);
    auto average = sum_of(pattern, 3, 100);
    for (auto& value : average) value /= 3;
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(average)), 0) == 0);
}

TEST_CASE("sums of 16-bit floats are encoded as IEEE and bfloat16 have it") {
    for (const auto& [dtype, bits] :
         {std::pair{DType::f16, std::vector<std::uint16_t>{0, 0x3C00, 0x4000, 0x4200}},
          std::pair{DType::bf16, std::vector<std::uint16_t>{0, 0x3F80, 0x4000, 0x4040}}}) {
        const Pattern half(dtype, ReduceOp::sum, 1), whole(DType::f32, ReduceOp::sum, 1);
        std::vector<std::uint16_t> halves(100);
        half.fill(std::as_writable_bytes(std::span(halves)), 0, 0);
        const auto values = filled(whole, 0, 0, 100);
        for (std::size_t i = 0; i < 100; ++i)
            CHECK(halves[i] == bits[static_cast<std::size_t>(values[i])]);
    }
}

TEST_CASE("sums of integers wrap: saturated ones do not pass, and averages divide what is left") {
    const std::size_t count = 1000;
    const Pattern pattern(DType::u8, ReduceOp::sum, 3), averages(DType::i16, ReduceOp::average, 3);
    std::vector<std::uint8_t> own(count), wrapping(count), saturating(count);
    std::vector<std::int16_t> part(count), average(count);
    for (int r = 0; r < 3; ++r) {
        pattern.fill(std::as_writable_bytes(std::span(own)), r, 0);
        averages.fill(std::as_writable_bytes(std::span(part)), r, 0);
        for (std::size_t i = 0; i < count; ++i) {
            wrapping[i] = static_cast<std::uint8_t>(wrapping[i] + own[i]);
            saturating[i] = static_cast<std::uint8_t>(std::min(saturating[i] + own[i], 255));
            average[i] = static_cast<std::int16_t>(average[i] + part[i]);
        }
    }
    for (auto& value : average) value = static_cast<std::int16_t>(value / 3);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(wrapping)), 0) == 0);
    CHECK(pattern.wrong_reduced(std::as_bytes(std::span(saturating)), 0) > count / 4);
    CHECK(averages.wrong_reduced(std::as_bytes(std::span(average)), 0) == 0);
}

TEST_CASE("what cannot be exact is refused") {
    CHECK_THROWS_AS(Pattern(DType::bf16, ReduceOp::average, 10), std::invalid_argument);
    CHECK_NOTHROW(Pattern(DType::bf16, ReduceOp::average, 9));
    CHECK_THROWS_AS(Pattern(DType::boolean, ReduceOp::sum, 2), std::invalid_argument);
    CHECK_NOTHROW(Pattern(DType::boolean, ReduceOp::max, 2));
}
