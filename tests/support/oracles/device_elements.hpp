#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "device/host/sum_of_squares.hpp"
#include "support/oracles/device_reduction.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::test {

/// Checks that the driver changes elements in place, and computes sum_of_squares, with the same
/// bits as the host.
inline void check_elements_of(device::Driver& driver, device::Stream& stream, DType dtype,
                              std::size_t count, std::size_t first) {
    const auto size = size_of(dtype);
    const auto elements = random_elements(dtype, count + first);
    auto expected = elements, result = elements;
    const auto part = [&](auto memory) { return memory.subspan(first * size, count * size); };
    device::scale(dtype, part(std::span(expected)), 0.3);
    const auto memory = driver.allocate(0, elements.size() + size);
    const auto scratch = driver.allocate(0, device::SumOrder::scratch_bytes);
    const auto pinned = driver.allocate_pinned(0, sizeof(double));
    auto& sum = *new (pinned.data()) double(-1);
    const auto copied = memory.first(elements.size());
    driver.copy(stream, copied, elements);
    driver.sum_of_squares(stream, dtype, part(copied), scratch, sum);
    const device::Copy in_place{part(copied), part(copied), dtype};
    driver.copy_all(stream, {&in_place, 1}, {.scale = 0.3});
    driver.copy(stream, result, copied);
    wait_until_done(stream);
    INFO(count << " of " << name_of(dtype) << " from " << first);
    CHECK((result == expected));
    CHECK(sum == device::sum_of_squares(dtype, part(std::span(elements))));
    driver.release(0, memory);
    driver.release(0, scratch);
    driver.release_pinned(0, pinned);
}

/// The same for all floating dtypes, with counts and offsets that are no multiple of 16 bytes, and
/// more groups than lanes.
inline void check_elements(device::Driver& driver) {
    const auto stream = driver.make_stream(0);
    for (const auto dtype : all_dtypes) {
        if (!is_floating(dtype)) continue;
        for (const std::size_t count : {0, 1, 7, 255, 4099})
            for (const std::size_t first : {0, 1, 3})
                check_elements_of(driver, *stream, dtype, count, first);
        const auto long_count = 2 * device::SumOrder::lanes * 16 / size_of(dtype) + 13;
        check_elements_of(driver, *stream, dtype, long_count, 0);
        check_elements_of(driver, *stream, dtype, long_count, 1);
    }
}

}  // namespace guozhuang::test
