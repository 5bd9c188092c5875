#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <guozhuang/error.hpp>
#include <hwy/targets.h>
#include <limits>
#include <random>
#include <vector>

#include "device/host/float16.hpp"
#include "device/host/host_reduce.hpp"
#include "device/host/stream_copy.hpp"
#include "support/oracles/reduction_oracle.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/sanitizer.hpp"

using namespace guozhuang;
using device::HostReduce;
using device::to_bfloat16;
using device::to_float;
using device::to_half;

namespace {

using Bytes = std::vector<std::byte>;
using Elements = std::span<const std::byte>;

// Around every vector size, and longer than one block of combine_tree at the end.
constexpr std::size_t lengths[] = {0,  1,  2,  3,  7,  8,  9,   15,   16,  17,
                                   31, 32, 33, 63, 64, 65, 127, 1000, 4100};

/// Runs `check` once with the kernels of each set of instructions that the processor has, down to
/// none.
template <class Check>
void on_every_target(Check check) {
    std::vector<device::CombineKernel> seen;
    for (const auto target : hwy::SupportedAndGeneratedTargets()) {
        hwy::GetChosenTarget().Update(target);
        const auto kernel = device::kernels_for(DType::f32, ReduceOp::sum).combine;
        INFO("target " << hwy::TargetName(target));
        if (std::ranges::find(seen, kernel) == seen.end()) check();
        seen.push_back(kernel);
    }
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

template <class Check>
void for_every_reduction(Check check) {
    for (const auto dtype : all_dtypes) {
        for (const auto op : all_reduce_ops) {
            INFO(name_of(dtype) << ' ' << name_of(op));
            if (op != ReduceOp::adasum && test::is_defined(op, dtype)) check(dtype, op);
        }
    }
}

// ---- The oracle: one element at a time, floats in double, integers in 64 bits.

template <class T>
T element(Elements elements, std::size_t i) {
    T value;
    std::memcpy(&value, elements.data() + i * sizeof(T), sizeof(T));
    return value;
}

template <class T>
void put(std::span<std::byte> elements, std::size_t i, T value) {
    std::memcpy(elements.data() + i * sizeof(T), &value, sizeof(T));
}

double float_at(DType dtype, Elements elements, std::size_t i) {
    switch (dtype) {
        case DType::f16: return static_cast<double>(to_float(element<Half>(elements, i)));
        case DType::bf16: return static_cast<double>(to_float(element<BFloat16>(elements, i)));
        case DType::f32: return static_cast<double>(element<float>(elements, i));
        default: return element<double>(elements, i);
    }
}

void put_float(DType dtype, std::span<std::byte> elements, std::size_t i, double value) {
    const auto single = static_cast<float>(value);
    switch (dtype) {
        case DType::f16: return put(elements, i, to_half(single));
        case DType::bf16: return put(elements, i, to_bfloat16(single));
        case DType::f32: return put(elements, i, single);
        default: return put(elements, i, value);
    }
}

/// A u64 is returned as its bits.
std::int64_t integer_at(DType dtype, Elements elements, std::size_t i) {
    switch (dtype) {
        case DType::i8: return element<std::int8_t>(elements, i);
        case DType::i16: return element<std::int16_t>(elements, i);
        case DType::i32: return element<std::int32_t>(elements, i);
        case DType::i64:
        case DType::u64: return element<std::int64_t>(elements, i);
        case DType::u16: return element<std::uint16_t>(elements, i);
        case DType::u32: return element<std::uint32_t>(elements, i);
        default: return element<std::uint8_t>(elements, i);
    }
}

void put_integer(DType dtype, std::span<std::byte> elements, std::size_t i, std::uint64_t value) {
    switch (size_of(dtype)) {
        case 1: return put(elements, i, static_cast<std::uint8_t>(value));
        case 2: return put(elements, i, static_cast<std::uint16_t>(value));
        case 4: return put(elements, i, static_cast<std::uint32_t>(value));
        default: return put(elements, i, value);
    }
}

double combined(ReduceOp op, double a, double b) {
    if (op == ReduceOp::product) return a * b;
    if (op != ReduceOp::min && op != ReduceOp::max) return a + b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
    const bool a_is_less = a < b || (a == b && std::signbit(a));
    return a_is_less == (op == ReduceOp::min) ? a : b;
}

std::uint64_t combined(DType dtype, ReduceOp op, std::int64_t a, std::int64_t b) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    const bool less = dtype == DType::u64 ? x < y : a < b;
    if (op == ReduceOp::product) return x * y;
    if (op == ReduceOp::min) return less ? x : y;
    if (op == ReduceOp::max) return less ? y : x;
    return x + y;
}

Bytes expected_combine(DType dtype, ReduceOp op, Elements left, Elements right) {
    Bytes result(left.size());
    for (std::size_t i = 0; i < left.size() / size_of(dtype); ++i) {
        if (is_floating(dtype)) {
            put_float(dtype, result, i,
                      combined(op, float_at(dtype, left, i), float_at(dtype, right, i)));
        } else {
            put_integer(
                dtype, result, i,
                combined(dtype, op, integer_at(dtype, left, i), integer_at(dtype, right, i)));
        }
    }
    return result;
}

/// x / ranks * scale, each rounded to f32 (f64 for f64); then to the element type.
Bytes expected_finish(DType dtype, int ranks, double scale, Elements elements) {
    Bytes result(elements.size());
    for (std::size_t i = 0; i < elements.size() / size_of(dtype); ++i) {
        if (dtype == DType::f64) {
            put(result, i, element<double>(elements, i) / ranks * scale);
        } else if (is_floating(dtype)) {
            const auto quotient =
                static_cast<float>(float_at(dtype, elements, i)) / static_cast<float>(ranks);
            put_float(dtype, result, i, static_cast<double>(quotient * static_cast<float>(scale)));
        } else {
            const auto value = integer_at(dtype, elements, i);
            const auto unsigned_value = static_cast<std::uint64_t>(value);
            put_integer(dtype, result, i,
                        dtype == DType::u64 ? unsigned_value / static_cast<unsigned>(ranks)
                                            : static_cast<std::uint64_t>(value / ranks));
        }
    }
    return result;
}

/// The same bits, or NaN on both sides (where two meet, a sum may return either).
bool same(DType dtype, Elements a, Elements b) {
    if (std::ranges::equal(a, b)) return true;
    if (a.size() != b.size() || !is_floating(dtype)) return false;
    for (std::size_t i = 0; i < a.size() / size_of(dtype); ++i) {
        const auto at = i * size_of(dtype);
        const bool both_nan =
            std::isnan(float_at(dtype, a, i)) && std::isnan(float_at(dtype, b, i));
        if (!both_nan && std::memcmp(&a[at], &b[at], size_of(dtype)) != 0) return false;
    }
    return true;
}

// ---- Data: `count` elements that start `offset` bytes behind an aligned address.

struct Tensor {
    Bytes memory;
    std::size_t offset;
    std::span<std::byte> bytes() { return std::span(memory).subspan(offset); }
};

double special_value(std::size_t which, DType dtype) {
    const double huge = dtype == DType::f64 ? 1e308 : dtype == DType::f16 ? 65504.0 : 3e38;
    const double denormal = dtype == DType::f64 ? 5e-324 : dtype == DType::f16 ? 0x1p-24 : 0x1p-133;
    const double infinity = std::numeric_limits<double>::infinity();
    const double values[] = {0.0,      -0.0,      1.0,      -1.5,      huge,        -huge,
                             denormal, -denormal, infinity, -infinity, std::nan("")};
    return values[which % std::size(values)];
}

/// Random bits, one element in four of floats a special value; booleans are 0 or 1.
Tensor random_tensor(DType dtype, std::size_t count, std::mt19937& random, std::size_t offset = 0) {
    Tensor tensor{Bytes(count * size_of(dtype) + offset), offset};
    std::vector<std::uint32_t> words(tensor.memory.size() / 4 + 1);
    std::ranges::generate(words, [&] { return static_cast<std::uint32_t>(random()); });
    if (count > 0) std::memcpy(tensor.memory.data(), words.data(), tensor.memory.size());
    for (std::size_t i = 0; i < count; ++i) {
        if (dtype == DType::boolean)
            put(tensor.bytes(), i, static_cast<std::uint8_t>(random() >> 31));
        if (is_floating(dtype) && random() % 4 == 0)
            put_float(dtype, tensor.bytes(), i, special_value(random() % 64, dtype));
    }
    return tensor;
}

Bytes tree_by_hand(const HostReduce& reduce, std::span<const Elements> inputs) {
    Bytes partials(inputs[0].size() / reduce.element_bytes() * reduce.partial_bytes());
    if (inputs.size() == 1) {
        reduce.widen(partials, inputs[0]);
        return partials;
    }
    std::size_t middle = 1;
    while (middle * 2 < inputs.size()) middle *= 2;
    reduce.combine_partials(partials, tree_by_hand(reduce, inputs.first(middle)),
                            tree_by_hand(reduce, inputs.subspan(middle)));
    return partials;
}

template <class T>
Elements as_elements(const std::vector<T>& values) {
    return std::as_bytes(std::span(values));
}

/// finish(left (op) right) of one element each.
template <class T>
T reduced(const HostReduce& reduce, T left, T right) {
    const Elements inputs[] = {std::as_bytes(std::span(&left, 1)),
                               std::as_bytes(std::span(&right, 1))};
    T result{};
    reduce.combine_tree(std::as_writable_bytes(std::span(&result, 1)), inputs);
    return result;
}

/// All 65536 values of a 16-bit float.
template <class T>
std::vector<T> all_values() {
    std::vector<T> values;
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits)
        values.push_back(T{static_cast<std::uint16_t>(bits)});
    return values;
}

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit float survives widening and narrowing", "[kernels]", Half,
                   BFloat16) {
    on_every_target([] {
        const HostReduce reduce({ReduceOp::sum, dtype_of<TestType>, 1});
        const auto values = all_values<TestType>();
        std::vector<float> wide(values.size());
        std::vector<TestType> back(values.size());
        reduce.widen(std::as_writable_bytes(std::span(wide)), as_elements(values));
        reduce.narrow(std::as_writable_bytes(std::span(back)), as_elements(wide));
        int wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
            wrong += std::bit_cast<std::uint32_t>(wide[i]) !=
                     std::bit_cast<std::uint32_t>(to_float(values[i]));
            wrong += std::isnan(wide[i]) ? !std::isnan(to_float(back[i])) : back[i] != values[i];
        }
        CHECK(wrong == 0);
    });
}

TEMPLATE_TEST_CASE("the kernels narrow as the scalar conversions do", "[kernels]", Half, BFloat16) {
    std::mt19937 random(test::seed());
    std::vector<std::uint32_t> wide(200'001);
    for (auto& bits : wide) bits = static_cast<std::uint32_t>(random());
    // Every other number is in the range of f16.
    for (std::size_t i = 0; i < wide.size(); i += 2) wide[i] = 0x33000000u + wide[i] % 0x15000000u;
    on_every_target([&] {
        const HostReduce reduce({ReduceOp::sum, dtype_of<TestType>, 1});
        std::vector<TestType> narrow(wide.size());
        reduce.narrow(std::as_writable_bytes(std::span(narrow)), as_elements(wide));
        int wrong = 0;
        for (std::size_t i = 0; i < wide.size(); ++i) {
            const auto value = std::bit_cast<float>(wide[i]);
            if constexpr (std::is_same_v<TestType, Half>) wrong += narrow[i] != to_half(value);
            if constexpr (std::is_same_v<TestType, BFloat16>)
                wrong += narrow[i] != to_bfloat16(value);
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("combine agrees with the oracle, at any length, unaligned and in place", "[kernels]") {
    std::mt19937 random(test::seed());
    on_every_target([&] {
        for_every_reduction([&](DType dtype, ReduceOp op) {
            const HostReduce reduce({op, dtype, 1});
            for (const auto count : lengths) {
                INFO(count << " elements");
                auto left = random_tensor(dtype, count, random, 1),
                     right = random_tensor(dtype, count, random, 3);
                auto into = random_tensor(dtype, count, random, 5);
                const auto expected = expected_combine(dtype, op, left.bytes(), right.bytes());
                reduce.combine(into.bytes(), left.bytes(), right.bytes());
                CHECK(same(dtype, into.bytes(), expected));
                auto copy = left;
                reduce.combine(copy.bytes(), copy.bytes(), right.bytes());
                CHECK(same(dtype, copy.bytes(), expected));
                reduce.combine(right.bytes(), left.bytes(), right.bytes());
                CHECK(same(dtype, right.bytes(), expected));
            }
        });
    });
}

TEST_CASE("a streamed copy is a copy, at any length, unaligned, and writes nothing else",
          "[kernels]") {
    Bytes from(5000), into(5200);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251);
    on_every_target([&] {
        for (const std::size_t length : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 1000u, 4096u, 4999u}) {
            for (const std::size_t at : {0u, 1u, 31u, 63u, 64u}) {
                CAPTURE(length, at);
                std::ranges::fill(into, std::byte{255});
                const auto room = std::span(into).subspan(at);
                device::stream_copy(room, std::span(from).subspan(1).first(length));
                device::fence_streamed();
                CHECK(std::ranges::equal(room.first(length),
                                         std::span(from).subspan(1).first(length)));
                CHECK(std::ranges::count(into, std::byte{255}) ==
                      static_cast<std::ptrdiff_t>(into.size() - length));
            }
        }
    });
}

TEST_CASE("min and max do not depend on the order of operands, bit for bit", "[kernels]") {
    std::mt19937 random(test::seed());
    on_every_target([&] {
        for_every_reduction([&](DType dtype, ReduceOp op) {
            if (op != ReduceOp::min && op != ReduceOp::max) return;
            const HostReduce reduce({op, dtype, 1});
            auto left = random_tensor(dtype, 1000, random),
                 right = random_tensor(dtype, 1000, random);
            Bytes one(left.bytes().size()), other(left.bytes().size());
            reduce.combine(one, left.bytes(), right.bytes());
            reduce.combine(other, right.bytes(), left.bytes());
            CHECK(one == other);
        });
    });
}

TEST_CASE("finish divides, then scales, in the tensor's own type", "[kernels]") {
    std::mt19937 random(test::seed());
    on_every_target([&] {
        for (const auto dtype : all_dtypes) {
            if (dtype == DType::boolean) continue;
            INFO(name_of(dtype));
            const double postscale = is_floating(dtype) ? 0.3 : 1.0;
            for (const auto count : lengths) {
                auto tensor = random_tensor(dtype, count, random, 1);
                const auto average = expected_finish(dtype, 3, postscale, tensor.bytes());
                const auto scaled = expected_finish(dtype, 1, postscale, tensor.bytes());
                auto copy = tensor;
                HostReduce({ReduceOp::average, dtype, 3, postscale}).finish(copy.bytes());
                CHECK(same(dtype, copy.bytes(), average));
                copy = tensor;
                HostReduce({ReduceOp::max, dtype, 3, postscale}).finish(copy.bytes());
                CHECK(same(dtype, copy.bytes(), scaled));
                device::scale(dtype, tensor.bytes(), postscale);
                CHECK(same(dtype, tensor.bytes(), scaled));
            }
        }
    });
}

TEST_CASE("integers wrap, and their average is truncated toward zero", "[kernels]") {
    CHECK(reduced<std::int32_t>(HostReduce({ReduceOp::average, DType::i32, 2}), -4, -3) == -3);
    CHECK(reduced<std::int64_t>(HostReduce({ReduceOp::average, DType::i64, 2}), 4, 3) == 3);
    CHECK(reduced<std::uint8_t>(HostReduce({ReduceOp::sum, DType::u8, 2}), 200, 100) == 44);
    CHECK(reduced<std::uint8_t>(HostReduce({ReduceOp::average, DType::u8, 300}), 200, 55) == 0);
    CHECK(reduced<std::int8_t>(HostReduce({ReduceOp::average, DType::i8, 2}), 100, 100) == -28);
    CHECK(reduced<std::int64_t>(HostReduce({ReduceOp::sum, DType::i64, 2}),
                                std::numeric_limits<std::int64_t>::max(),
                                1) == std::numeric_limits<std::int64_t>::min());
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    CHECK(reduced<std::uint16_t>(HostReduce({ReduceOp::sum, DType::u16, 2}), 65'535, 3) == 2);
    CHECK(reduced<std::uint32_t>(HostReduce({ReduceOp::average, DType::u32, 2}), 4'000'000'000,
                                 5) == 2'000'000'002);
    CHECK(reduced<std::uint64_t>(HostReduce({ReduceOp::sum, DType::u64, 2}), most, 3) == 2);
    CHECK(reduced<std::uint64_t>(HostReduce({ReduceOp::average, DType::u64, 2}), most - 4, 1) ==
          (most - 3) / 2);
    CHECK(reduced<std::uint64_t>(HostReduce({ReduceOp::min, DType::u64, 2}), most, 1) == 1);
    CHECK(reduced<std::uint64_t>(HostReduce({ReduceOp::max, DType::u64, 2}), most, 1) == most);
}

TEST_CASE("an average of 16-bit floats is rounded once", "[kernels]") {
    const HostReduce half({ReduceOp::average, DType::f16, 2});
    // The average is right, though the sum is beyond f16.
    CHECK(reduced(half, Half{0x7bff}, Half{0x7bff}).bits == 0x7bff);
    const HostReduce third({ReduceOp::average, DType::bf16, 3, 3.0});
    CHECK(reduced(third, to_bfloat16(256.0f), to_bfloat16(1.0f)) ==
          to_bfloat16(257.0f / 3.0f * 3.0f));
    const HostReduce scaled({ReduceOp::sum, DType::bf16, 2, 3.0});
    // The result before rounding is 771; the rounded sum would give 768.
    CHECK(to_float(reduced(scaled, to_bfloat16(256.0f), to_bfloat16(1.0f))) == 772.0f);
}

TEST_CASE("an average is a division, also of the smallest numbers and by powers of two",
          "[kernels]") {
    const auto average = [](DType dtype, int ranks, auto sum) {
        return reduced(HostReduce({ReduceOp::average, dtype, ranks}), sum, decltype(sum)());
    };
    for (const double sum : {1.0, -3.0, 0x1p-149, 0x3p-149, 0x7p-127, 0x1.fffffep127, 0x3p-1074})
        for (const int ranks : {1, 2, 3, 4, 5, 8, 1024, 1 << 30}) {
            INFO(sum << " by " << ranks);
            const auto single = static_cast<float>(sum);
            const auto divisor = static_cast<float>(ranks);
            CHECK(average(DType::f64, ranks, sum) == sum / ranks);
            CHECK(average(DType::f32, ranks, single) == single / divisor);
            CHECK(average(DType::bf16, ranks, to_bfloat16(single)) ==
                  to_bfloat16(to_float(to_bfloat16(single)) / divisor));
            CHECK(average(DType::f16, ranks, to_half(single)) ==
                  to_half(to_float(to_half(single)) / divisor));
        }
}

TEST_CASE("combine_tree is widen, combine_partials and narrow along the balanced tree",
          "[kernels]") {
    std::mt19937 random(test::seed());
    on_every_target([&] {
        for_every_reduction([&](DType dtype, ReduceOp op) {
            for (std::size_t ranks = 1; ranks <= 9; ranks += test::under_sanitizer ? 4 : 1) {
                INFO(ranks << " inputs");
                const HostReduce reduce({op, dtype, static_cast<int>(ranks),
                                         is_floating(dtype) && ranks % 2 == 1 ? 0.7 : 1.0});
                const std::size_t count = 500 * ranks + ranks;
                std::vector<Tensor> tensors;
                for (std::size_t i = 0; i < ranks; ++i)
                    tensors.push_back(random_tensor(dtype, count, random, i));
                std::vector<Elements> inputs;
                for (auto& tensor : tensors) inputs.push_back(tensor.bytes());
                Bytes expected(inputs[0].size()), result(inputs[0].size());
                reduce.narrow(expected, tree_by_hand(reduce, inputs));
                reduce.combine_tree(result, inputs);
                CHECK(same(dtype, result, expected));
                const auto into = tensors[random() % ranks].bytes();
                reduce.combine_tree(into, inputs);
                CHECK(same(dtype, into, expected));
            }
        });
    });
}

TEST_CASE("the tree splits at the largest power of two", "[kernels]") {
    const float big = 0x1p24f;  // big + 1 == big
    const std::vector<float> values[] = {{big}, {1}, {1}, {1}, {1}, {1}, {-big}};
    std::vector<Elements> inputs;
    for (const auto& value : values) inputs.push_back(as_elements(value));
    std::vector<float> result(1);
    HostReduce({ReduceOp::sum, DType::f32, 7})
        .combine_tree(std::as_writable_bytes(std::span(result)), inputs);
    CHECK(result[0] == ((big + 1) + (1.0f + 1)) + ((1.0f + 1) + -big));
    CHECK(result[0] == 4.0f);  // from left to right it would be 0
}

TEST_CASE("adasum gives the same bits on every processor, and those of its formula", "[kernels]") {
    for (const auto dtype : {DType::f32, DType::f64}) {
        for (const std::int64_t count : {1, 31, 32, 33, 1003}) {
            const std::vector<test::Tensor> sides{test::random_tensor(dtype, {count}, 1),
                                                  test::random_tensor(dtype, {count}, 2)};
            std::vector<std::vector<std::byte>> results;
            on_every_target([&] {
                test::Tensor result(dtype, {count});
                device::adasum_for(dtype)(result.bytes, sides[0].bytes, sides[1].bytes);
                CHECK(test::fault_of_adasum(result, sides, {}) == "");
                results.push_back(result.bytes);
            });
            for (const auto& result : results) CHECK((result == results[0]));
        }
    }
}

TEST_CASE("what a dtype cannot do is refused", "[kernels]") {
    for (const auto dtype : all_dtypes) {
        CHECK_THROWS_AS(HostReduce({ReduceOp::adasum, dtype, 2}), Error);
        if (!is_floating(dtype)) CHECK_THROWS_AS(device::adasum_for(dtype), Error);
    }
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::product}) {
        CHECK_THROWS_AS(HostReduce({op, DType::boolean, 2}), Error);
    }
    CHECK_THROWS_AS(HostReduce({ReduceOp::sum, DType::i32, 2, 0.5}), Error);
    CHECK_THROWS_AS(HostReduce({ReduceOp::average, DType::f32, 0}), Error);
    std::vector<std::int32_t> values{1, 2};
    CHECK_THROWS_AS(device::scale(DType::i32, std::as_writable_bytes(std::span(values)), 2.0),
                    Error);
    CHECK_NOTHROW(device::scale(DType::i32, std::as_writable_bytes(std::span(values)), 1.0));
}
