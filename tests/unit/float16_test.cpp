#include "device/host/float16.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/runner/catch.hpp"

namespace guozhuang::test {
namespace {

using device::to_bfloat16;
using device::to_float;
using device::to_half;

/// Counts finite neighbours between which a value does not go to the nearer one, or a tie not to
/// the even one.
template <class T, class Narrow>
int wrongly_rounded(Narrow narrow, std::uint16_t infinity) {
    int wrong = 0;
    for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
        const auto next = static_cast<std::uint16_t>(bits + 1);
        const float below = to_float(T{bits}), above = to_float(T{next}),
                    middle = below + (above - below) / 2;
        wrong += narrow(middle).bits != (bits % 2 == 0 ? bits : next);
        wrong += narrow(std::nextafter(middle, below)).bits != bits;
        wrong += narrow(std::nextafter(middle, above)).bits != next;
        wrong += narrow(-middle).bits != (narrow(middle).bits | 0x8000);
    }
    return wrong;
}

}  // namespace

TEST_CASE("16-bit floats round to the nearest, ties to even") {
    CHECK(wrongly_rounded<Half>(to_half, 0x7c00) == 0);
    CHECK(wrongly_rounded<BFloat16>(to_bfloat16, 0x7f80) == 0);

    CHECK(to_float(Half{0x3c01}) == 1.0f + 0x1p-10f);
    CHECK(to_float(Half{0x0001}) == 0x1p-24f);
    CHECK(to_float(Half{0x7bff}) == 65504.0f);
    CHECK(to_half(65519.996f).bits == 0x7bff);
    CHECK(to_half(65520.0f).bits == 0x7c00);
    CHECK(to_half(1e30f).bits == 0x7c00);
    CHECK(to_half(0x1p-25f).bits == 0x0000);
    CHECK(to_half(0x1.8p-25f).bits == 0x0001);
    CHECK(to_float(BFloat16{0x3f81}) == 1.0f + 0x1p-7f);
    CHECK(to_bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
    // NaNs whose payload lies in the lost bits stay NaNs.
    CHECK(to_bfloat16(std::bit_cast<float>(0x7f800001u)).bits == 0x7fc0);
    CHECK(to_half(std::bit_cast<float>(0xff800001u)).bits == 0xfe00);
}

}  // namespace guozhuang::test
