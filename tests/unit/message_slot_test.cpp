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
