#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
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

/// Random elements, without NaN and infinity: the bits of a NaN are not specified.
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

/// Memory of the driver's device, with a copy of it on the host.
class Mirrored {
public:
    Mirrored(device::Driver& driver, device::Stream& stream, std::vector<std::byte> bytes)
        : host(std::move(bytes)), driver_(driver), device_(driver.allocate(0, host.size())) {
        driver.copy(stream, device_, host);
        wait_until_done(stream);
    }
    ~Mirrored() { driver_.release(0, device_); }
    Mirrored(const Mirrored&) = delete;
    Mirrored& operator=(const Mirrored&) = delete;

    std::span<std::byte> device() const { return device_; }
    std::vector<std::byte> read(device::Stream& stream) const {
        std::vector<std::byte> bytes(device_.size());
        driver_.copy(stream, bytes, device_);
        wait_until_done(stream);
        return bytes;
    }
    std::vector<std::byte> host;

private:
    device::Driver& driver_;
    const std::span<std::byte> device_;
};

/// Checks that the driver reduces this many inputs to the same bits as the host, at offsets where
/// all sides or only some can be read in packs, into other memory and into the last input.
inline void check_reduction_like_host(device::Driver& driver, device::Stream& stream,
                                      const device::Reduction& reduction, std::size_t inputs) {
    constexpr std::size_t count = 1027;
    const auto [op, dtype, contributors, postscale] = reduction;
    const auto element = size_of(dtype);
    std::deque<Mirrored> memories;
    for (std::size_t i = 0; i < inputs + 1; ++i)
        memories.emplace_back(driver, stream, random_elements(dtype, count + 1));
    for (const auto& [first, others] : {std::pair{0u, 0u}, {1u, 1u}, {1u, 0u}}) {
        const auto part = [&](auto memory, std::size_t i) {
            return memory.subspan((i == 0 ? first : others) * element, count * element);
        };
        std::vector<std::span<const std::byte>> host_inputs, device_inputs;
        for (std::size_t i = 0; i < inputs; ++i) {
            memories[i].host = memories[i].read(stream);
            host_inputs.push_back(part(std::span(memories[i].host), i));
            device_inputs.push_back(part(memories[i].device(), i));
        }
        std::vector<std::byte> expected(count * element);
        device::HostReduce({op, dtype, contributors, postscale})
            .combine_tree(expected, host_inputs);
        const std::span<std::byte> outputs[] = {part(memories[inputs - 1].device(), inputs - 1),
                                                part(memories[inputs].device(), inputs)};
        driver.reduce(stream, reduction, outputs, device_inputs);
        for (const auto i : {inputs - 1, inputs}) {
            const auto result = memories[i].read(stream);
            INFO(inputs << " inputs, " << name_of(op) << " of " << name_of(dtype) << " at " << first
                        << ", " << others);
            // Not printed: these are thousands of bytes.
            CHECK(std::ranges::equal(part(std::span(result), i), expected));
        }
    }
}

/// The same for every op of every dtype that a device reduces.
inline void check_reductions_like_host(device::Driver& driver) {
    const auto stream = driver.make_stream(0);
    for (const auto dtype : all_dtypes) {
        for (const auto op : all_reduce_ops) {
            if (op == ReduceOp::adasum) continue;
            if (dtype == DType::boolean && op != ReduceOp::min && op != ReduceOp::max) continue;
            const double postscale = is_floating(dtype) ? 0.75 : 1;
            for (const std::size_t inputs : {1u, 2u, 3u, 7u, 8u})
                check_reduction_like_host(driver, *stream, {op, dtype, 5, postscale}, inputs);
        }
    }
    for (const auto dtype : {DType::i8, DType::f16, DType::f64})
        check_reduction_like_host(driver, *stream, {ReduceOp::sum, dtype},
                                  device::Reduction::most_inputs);
}

inline float reduce_one(device::Driver& driver, ReduceOp op, float left, float right) {
    const auto stream = driver.make_stream(0);
    const auto bytes = [](float value) {
        const auto raw = std::as_bytes(std::span(&value, 1));
        return std::vector(raw.begin(), raw.end());
    };
    const Mirrored a(driver, *stream, bytes(left)), b(driver, *stream, bytes(right));
    const std::span<std::byte> output = a.device();
    const std::span<const std::byte> inputs[] = {a.device(), b.device()};
    driver.reduce(*stream, {op, DType::f32}, {&output, 1}, inputs);
    const auto result = a.read(*stream);
    std::memcpy(&left, result.data(), sizeof left);
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
