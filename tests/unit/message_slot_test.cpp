// The pinned memory and the streams of messages: kept, and never shared by two.
#include <algorithm>
#include <memory>

#include "engine/message_slot.hpp"
#include "support/fakes/fake_driver.hpp"
#include "support/fakes/forwarding_driver.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;

namespace {

class CountingStreams : public test::ForwardingDriver {
public:
    CountingStreams() : ForwardingDriver(make_fake_driver()) {}

    std::shared_ptr<device::Stream> make_stream(int device) override {
        ++streams;
        return ForwardingDriver::make_stream(device);
    }
    void release_pinned(int device, std::span<std::byte> memory) noexcept override {
        largest_released = std::max(largest_released, memory.size());
        ForwardingDriver::release_pinned(device, memory);
    }

    int streams = 0;
    std::size_t largest_released = 0;
};

}  // namespace

TEST_CASE("a size that comes again finds a slot, unless that is taken") {
    const auto driver = make_fake_driver();
    engine::MessageSlots slots(0, std::make_shared<engine::Completions>(driver));
    auto& first = slots.take(5000);
    CHECK(first.pinned.memory.size() == 8192);
    auto& second = slots.take(5000);
    CHECK(&second != &first);
    slots.give_back(first);
    CHECK(&slots.take(6000) == &first);
    slots.give_back(second);
    CHECK(&slots.take(8193) != &second);
    CHECK(&slots.take(8192) == &second);
}

TEST_CASE("there are as many streams as messages at once, whatever their sizes") {
    const auto driver = std::make_shared<CountingStreams>();
    engine::MessageSlots slots(0, std::make_shared<engine::Completions>(driver));
    for (const std::size_t bytes : {1U, 5000U, 100'000U, 5000U}) {
        auto &sent = slots.take(bytes), &received = slots.take(bytes);
        CHECK(sent.stream != received.stream);
        slots.give_back(sent);
        slots.give_back(received);
    }
    CHECK(driver->streams == 2);
}

TEST_CASE("a large slot is as large as its message, and makes way for a larger one") {
    const auto driver = std::make_shared<CountingStreams>();
    engine::MessageSlots slots(0, std::make_shared<engine::Completions>(driver));
    constexpr auto large = engine::MessageSlots::largest_rounded_bytes;
    auto& rounded = slots.take(large - 5);
    CHECK(rounded.pinned.memory.size() == large);
    auto& exact = slots.take(large + 5);
    CHECK(exact.pinned.memory.size() == large + 5);
    slots.give_back(rounded);
    slots.give_back(exact);
    CHECK(&slots.take(large + 1) == &exact);
    slots.give_back(exact);
    CHECK(driver->largest_released < large);
    auto& larger = slots.take(large + 6);
    CHECK(driver->largest_released == large + 5);
    CHECK(&slots.take(large) == &rounded);
    slots.give_back(larger);
    CHECK(&slots.take(large + 2) == &larger);
}
