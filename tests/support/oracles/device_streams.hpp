#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "support/oracles/device_reduction.hpp"
#include "support/runner/catch.hpp"

/// Checks of fills, copies, events and words on the streams of any driver.
namespace guozhuang::test {

/// Memory that all devices of a driver reach, for words and for copies that nobody waits for.
class Pinned {
public:
    explicit Pinned(device::Driver& driver)
        : driver_(driver), memory_(driver.allocate_pinned(0, 4096)) {}
    ~Pinned() { driver_.release_pinned(0, memory_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;

    device::Word& word(std::size_t index) const {
        return *new (memory_.subspan(64 * index).data()) device::Word(0);
    }
    std::span<std::byte> upper_half() const { return memory_.last(2048); }

private:
    device::Driver& driver_;
    const std::span<std::byte> memory_;
};

inline void check_fill_of(device::Driver& driver, device::Stream& stream,
                          std::span<const std::byte> element) {
    for (const std::size_t count : {0, 1, 7, 4099}) {
        for (const std::size_t first : {0, 1, 3}) {
            std::vector<std::byte> result((count + 4) * element.size(), std::byte{0x55});
            auto expected = result;
            for (std::size_t i = 0; i < count; ++i)
                std::ranges::copy(
                    element, expected.begin() + std::ssize(element) * static_cast<long>(first + i));
            const auto memory = driver.allocate(0, result.size());
            driver.copy(stream, memory, result);
            driver.fill(stream, memory.subspan(first * element.size(), count * element.size()),
                        element);
            driver.copy(stream, result, memory);
            wait_until_done(stream);
            driver.release(0, memory);
            INFO(count << " elements of " << element.size() << " bytes from " << first);
            CHECK(result == expected);
        }
    }
}

inline void check_fills(device::Driver& driver) {
    const auto stream = driver.make_stream(0);
    constexpr std::array<unsigned char, 8> different{0x81, 0x12, 0xa3, 0x34,
                                                     0xc5, 0x56, 0xe7, 0x78};
    constexpr std::array<unsigned char, 8> equal{7, 7, 7, 7, 7, 7, 7, 7};
    for (const std::size_t size : {1, 2, 4, 8}) {
        check_fill_of(driver, *stream, std::as_bytes(std::span(different)).first(size));
        check_fill_of(driver, *stream, std::as_bytes(std::span(equal)).first(size));
    }
}

/// Streams wait for a host thread and for each other, by words and by events.
inline void check_order(device::Driver& driver) {
    const Pinned pinned(driver);
    auto &gate = pinned.word(0), &filled = pinned.word(1), &ended = pinned.word(2);
    const auto result = pinned.upper_half();
    std::ranges::fill(result, std::byte{0});
    const auto memory = driver.allocate(0, result.size());
    const auto slow = driver.make_stream(0), by_word = driver.make_stream(0),
               by_event = driver.make_stream(0);
    const std::byte seven{7};
    driver.wait(*slow, gate, 1);
    driver.fill(*slow, memory, {&seven, 1});
    driver.write(*slow, filled, 1);
    driver.wait(*by_word, filled, 1);
    driver.copy(*by_word, result, memory);
    by_event->wait(driver.wrap(by_word->ref())->record());
    driver.write(*by_event, ended, 1);
    const auto done = by_event->record();
    CHECK_FALSE(done->done());
    CHECK(filled.load() + ended.load() == 0);
    driver.require_healthy(0);  // does not wait for enqueued work
    device::advance(gate, 1);
    wait_until_done(*by_event);
    CHECK(done->done());
    CHECK(ended.load() == 1);
    CHECK(std::ranges::count(result, seven) == std::ssize(result));
    driver.release(0, memory);
}

inline void check_words_wrap_around(device::Driver& driver) {
    const Pinned pinned(driver);
    auto& gate = pinned.word(0);
    const auto stream = driver.make_stream(0);
    gate = 0xfffffffe;
    driver.wait(*stream, gate, 0xfffffffd);  // which is behind
    driver.wait(*stream, gate, 0x7fffffff);  // as far behind as can be
    wait_until_done(*stream);
    driver.wait(*stream, gate, 3);
    const auto done = stream->record();
    device::advance(gate, 1);
    CHECK_FALSE(done->done());
    device::advance(gate, 6);
    wait_until_done(*stream);
    CHECK(done->done());
}

}  // namespace guozhuang::test
