#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "support/oracles/device_reduction.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::test {

/// Copies at random from anywhere in one memory to ranges of another, with gaps between them or
/// without.
class RandomCopies {
public:
    struct Shape {
        std::size_t count, most_elements;
        std::optional<DType> dtype;  ///< otherwise any floating dtype
    };
    explicit RandomCopies(const Shape& shape) {
        for (std::size_t i = 0; i < shape.count; ++i) {
            const auto dtype = shape.dtype.value_or(floating.at(below(floating.size())));
            const auto element = size_of(dtype);
            const auto bytes = element * below(shape.most_elements + 1);
            const auto to = (to_bytes_ + element - 1) / element * element + element * below(3);
            const auto from = element * below(64);
            ranges_.push_back({to, from, bytes, dtype});
            to_bytes_ = to + bytes;
            from_bytes_ = std::max(from_bytes_, from + bytes);
        }
    }
    std::size_t to_bytes() const noexcept { return to_bytes_ + 16; }
    std::size_t from_bytes() const noexcept { return from_bytes_; }

    std::vector<device::Copy> between(std::span<std::byte> to,
                                      std::span<const std::byte> from) const {
        std::vector<device::Copy> copies;
        for (const auto& range : ranges_)
            copies.push_back({to.subspan(range.to, range.bytes),
                              from.subspan(range.from, range.bytes), range.dtype});
        return copies;
    }

private:
    struct Range {
        std::size_t to, from, bytes;
        DType dtype;
    };
    static constexpr std::array floating{DType::f16, DType::bf16, DType::f32, DType::f64};

    std::size_t below(std::size_t end) { return random_() % end; }

    std::minstd_rand random_{seed()};
    std::vector<Range> ranges_;
    std::size_t to_bytes_ = 0, from_bytes_ = 0;
};

/// Checks that copy_all() equals a copy() for each copy and a reduction of it alone, and writes
/// nothing else; then the same for copies onto themselves.
inline void check_copies_of(device::Driver& driver, const RandomCopies::Shape& shape,
                            const device::Finish& finish) {
    const auto stream = driver.make_stream(0);
    const RandomCopies random(shape);
    const auto at_first = random_elements(DType::u8, random.to_bytes());
    const auto dtype = shape.dtype.value_or(DType::f32);
    const Mirrored from(driver, *stream,
                        random_elements(dtype, random.from_bytes() / size_of(dtype) + 1));
    const Mirrored one_by_one(driver, *stream, at_first), together(driver, *stream, at_first);
    for (const auto& [into, part, own_dtype] : random.between(one_by_one.device(), from.device())) {
        driver.copy(*stream, into, part);
        const std::span<const std::byte> input = into;
        for (int turn = 0; turn < 2 && !finish.is_identity(); ++turn)
            driver.reduce(*stream, {ReduceOp::average, own_dtype, finish.divisor, finish.scale},
                          {&into, 1}, {&input, 1});
    }
    auto copies = random.between(together.device(), from.device());
    driver.copy_all(*stream, copies, finish);
    for (auto& each : copies) each.from = each.to;
    if (!finish.is_identity()) driver.copy_all(*stream, copies, finish);
    INFO(shape.count << " copies of up to " << shape.most_elements << " of "
                     << (shape.dtype ? name_of(dtype) : "any") << ", divided by " << finish.divisor
                     << ", times " << finish.scale);
    // Not printed: these are many bytes.
    CHECK((together.read(*stream) == one_by_one.read(*stream)));
}

/// More small copies than one kernel takes; copies of several tiles; large ones, each with its own
/// launch.
inline void check_copies(device::Driver& driver) {
    for (const auto dtype : all_dtypes) {
        check_copies_of(driver, {0, 0, dtype}, {});
        check_copies_of(driver, {1, 40, dtype}, {});
        check_copies_of(driver, {300, 40, dtype}, {});
        check_copies_of(driver, {20, 40'000, dtype}, {});
        if (!is_floating(dtype)) continue;
        check_copies_of(driver, {300, 40, dtype}, {.scale = 0.3});
        check_copies_of(driver, {20, 20'000, dtype}, {.divisor = 3, .scale = -3});
    }
    for (const auto dtype : {DType::i64, DType::u64})
        check_copies_of(driver, {300, 3000, dtype}, {.divisor = 3});
    check_copies_of(driver, {4000, 20, DType::u8}, {});
    check_copies_of(driver, {3, 2'000'000, DType::u8}, {});
    check_copies_of(driver, {2, 300'000, DType::f32}, {.scale = 0.3});
    check_copies_of(driver, {400, 100, std::nullopt}, {});
    check_copies_of(driver, {400, 100, std::nullopt}, {.divisor = 7, .scale = 0.3});
}

}  // namespace guozhuang::test
