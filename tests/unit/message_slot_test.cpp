// The pinned memory of messages: kept, and never shared by two.
#include <memory>

#include "device/host/fake_driver.hpp"
#include "engine/message_slot.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;

TEST_CASE("a size that comes again finds a slot, unless that is taken") {
    const auto driver = device::make_fake_driver();
    engine::MessageSlots slots(driver, 0, std::make_shared<engine::Completions>(driver));
    auto& first = slots.take(5000);
    CHECK(first.pinned.memory().size() == 8192);
    auto& second = slots.take(5000);
    CHECK(&second != &first);
    slots.give_back(first);
    CHECK(&slots.take(6000) == &first);
    slots.give_back(second);
    CHECK(&slots.take(8193) != &second);
    CHECK(&slots.take(8192) == &second);
}

TEST_CASE("a large slot is as large as its message, and makes way for a larger one") {
    const auto driver = device::make_fake_driver();
    engine::MessageSlots slots(driver, 0, std::make_shared<engine::Completions>(driver));
    constexpr auto large = engine::MessageSlots::largest_rounded_bytes;
    auto& rounded = slots.take(large - 5);
    CHECK(rounded.pinned.memory().size() == large);
    auto& exact = slots.take(large + 5);
    CHECK(exact.pinned.memory().size() == large + 5);
    slots.give_back(rounded);
    slots.give_back(exact);
    CHECK(&slots.take(large + 1) == &exact);
    slots.give_back(exact);
    const std::weak_ptr<device::Stream> stream = exact.stream;
    auto& larger = slots.take(large + 6);
    CHECK(stream.expired());  // with its slot
    CHECK(&slots.take(large) == &rounded);
    slots.give_back(larger);
    CHECK(&slots.take(large + 2) == &larger);
}
