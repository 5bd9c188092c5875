#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "device/host/host_reduce.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::test {

/// Blocks until everything enqueued on the stream so far is done.
inline void wait_until_done(device::Stream& stream) {
    const auto event = stream.record();
    while (!event->done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

/// Random elements, without NaN and infinity: what a NaN looks like is nobody's promise.
inline std::vector<std::byte> random_elements(DType dtype, std::size_t count) {
    static unsigned state = seed();
    std::vector<std::byte> bytes(count * size_of(dtype));
    for (auto& byte : bytes)
        byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24 &
                                      (dtype == DType::boolean ? 1 : 0xff));
    if (!is_floating(dtype)) return bytes;
    for (std::size_t top = size_of(dtype) - 1; top < bytes.size(); top += size_of(dtype))
        bytes[top] &= std::byte{0xbf};
    return bytes;
}

/// Holds the driver's reduction equal to the host's, at offsets where both, one or none of the
/// sides can be read in packs.
inline void check_reduction_like_host(device::Driver& driver, device::Stream& stream, ReduceOp op,
                                      DType dtype) {
    constexpr std::size_t count = 4099;
    const auto left = random_elements(dtype, count + 1), right = random_elements(dtype, count + 1);
    const auto a = driver.allocate(0, left.size()), b = driver.allocate(0, right.size());
    for (const auto& [x, y] : {std::pair{0u, 0u}, {1u, 1u}, {1u, 0u}}) {
        const auto at = [&](auto memory, std::size_t first) {
            return memory.subspan(first * size_of(dtype), count * size_of(dtype));
        };
        auto result = left, expected = left;
        device::HostReduce(dtype, op, 1)
            .combine(at(std::span(expected), x), at(std::span(left), x), at(std::span(right), y));
        driver.copy(stream, a, left);
        driver.copy(stream, b, right);
        driver.reduce(stream, op, dtype, at(a, x), at(b, y));
        driver.copy(stream, result, a);
        wait_until_done(stream);
        INFO(name_of(op) << " of " << name_of(dtype) << " at " << x << ", " << y);
        CHECK((result == expected));  // not printed: these are thousands of bytes
    }
    driver.release(0, a);
    driver.release(0, b);
}

/// The same for every op of every dtype that a device reduces.
inline void check_reductions_like_host(device::Driver& driver) {
    const auto stream = driver.make_stream(0);
    for (const auto dtype : all_dtypes) {
        for (const auto op : all_reduce_ops) {
            if (op == ReduceOp::adasum) continue;
            if (dtype != DType::boolean || op == ReduceOp::min || op == ReduceOp::max)
                check_reduction_like_host(driver, *stream, op, dtype);
        }
    }
}

inline float reduce_one(device::Driver& driver, ReduceOp op, float left, float right) {
    const auto stream = driver.make_stream(0);
    const auto a = driver.allocate(0, sizeof(float)), b = driver.allocate(0, sizeof(float));
    driver.copy(*stream, a, std::as_bytes(std::span(&left, 1)));
    driver.copy(*stream, b, std::as_bytes(std::span(&right, 1)));
    driver.reduce(*stream, op, DType::f32, a, b);
    driver.copy(*stream, std::as_writable_bytes(std::span(&left, 1)), a);
    wait_until_done(*stream);
    driver.release(0, a);
    driver.release(0, b);
    return left;
}

inline void check_special_values(device::Driver& driver) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const auto op : {ReduceOp::min, ReduceOp::max}) {
        CHECK(std::isnan(reduce_one(driver, op, nan, 1.0f)));
        CHECK(std::isnan(reduce_one(driver, op, 1.0f, nan)));
        CHECK(std::signbit(reduce_one(driver, op, -0.0f, 0.0f)) == (op == ReduceOp::min));
        CHECK(std::signbit(reduce_one(driver, op, 0.0f, -0.0f)) == (op == ReduceOp::min));
    }
}

}  // namespace guozhuang::test
