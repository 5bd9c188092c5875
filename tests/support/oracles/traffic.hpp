#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/fakes/inproc_ranks.hpp"

namespace guozhuang::test {

/// Random messages between all pairs of ranks, itself included, over any Transport: every rank
/// draws the same schedule from the seed, so each knows what must arrive, in which order. Throws on
/// the first wrong byte; so it can run on threads. Collective.
struct TrafficSchedule {
    struct Item {
        int from = 0, to = 0;
        wire::Tag tag;
        std::size_t bytes = 0;
        unsigned char first = 0;  ///< byte i of the message is first + i
    };

    TrafficSchedule(unsigned seed, int ranks, int messages, std::size_t largest) {
        std::mt19937 random(seed);
        const auto below = [&](std::size_t bound) {
            return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
        };
        for (int i = 0; i < messages; ++i) {
            Item item;
            item.from = static_cast<int>(below(static_cast<std::size_t>(ranks)));
            item.to = static_cast<int>(below(static_cast<std::size_t>(ranks)));
            item.tag.context = static_cast<std::uint16_t>(below(2));
            item.tag.lane =
                static_cast<wire::Lane>(below(static_cast<std::size_t>(last_of(wire::Lane{})) + 1));
            if (item.tag.lane == wire::Lane::point_to_point)
                item.tag.user = static_cast<std::uint16_t>(below(3));
            item.bytes = below(4) == 0 ? below(largest + 1) : below(64);
            item.first = static_cast<unsigned char>(below(256));
            items.push_back(item);
        }
    }

    static std::vector<std::byte> content(const Item& item) {
        std::vector<std::byte> bytes(item.bytes);
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::byte>(item.first + i * 7);
        return bytes;
    }

    std::vector<Item> items;
};

/// One rank's part of a schedule.
class Traffic {
public:
    Traffic(wire::Transport& transport, const TrafficSchedule& schedule)
        : transport_(transport), schedule_(schedule) {}

    void run() {
        for (const auto& item : schedule_.items) {
            if (item.from == transport_.rank()) send(item);
            if (item.to == transport_.rank()) receive(item);
        }
        base::wait_until(transport_.doorbell(), transport_.wait_settings(), [&] { return look(); });
        for (const auto& flight : receives_) compare(flight.bytes, *flight.item);
    }

private:
    struct Flight {
        const TrafficSchedule::Item* item;
        std::vector<std::byte> bytes;
        wire::Transport::Ticket ticket;
    };

    void send(const TrafficSchedule::Item& item) {
        Flight& flight = sends_.emplace_back(Flight{&item, TrafficSchedule::content(item), {}});
        flight.ticket = transport_.send(item.to, item.tag, flight.bytes);
    }

    void receive(const TrafficSchedule::Item& item) {
        if (item.tag.lane == wire::Lane::control) return control_.push_back(&item);
        Flight& flight =
            receives_.emplace_back(Flight{&item, std::vector<std::byte>(item.bytes), {}});
        flight.ticket = transport_.receive(item.from, item.tag, flight.bytes);
    }

    /// Whether everything has arrived. Looks at every kind of message: a long control message is
    /// not sent before it is polled.
    bool look() {
        while (poll_control()) {
        }
        bool done = transport_.flushed() && control_.empty();
        for (auto& flight : sends_) done = transport_.test(flight.ticket) && done;
        for (auto& flight : receives_) done = transport_.test(flight.ticket) && done;
        return done;
    }

    /// Control messages arrive in the order of their sender; the senders may come in any order.
    bool poll_control() {
        if (control_.empty()) return false;
        const wire::Tag tag = control_.front()->tag;
        const auto message = transport_.poll(tag);
        if (!message) return false;
        const auto expected = std::find_if(control_.begin(), control_.end(), [&](const auto* item) {
            return item->from == message->from && item->tag == tag;
        });
        if (expected == control_.end()) throw std::runtime_error("an unexpected control message");
        compare(message->bytes, **expected);
        control_.erase(expected);
        return true;
    }

    void compare(const std::vector<std::byte>& got, const TrafficSchedule::Item& item) const {
        if (got == TrafficSchedule::content(item)) return;
        throw std::runtime_error("rank " + std::to_string(transport_.rank()) +
                                 " got a wrong message from rank " + std::to_string(item.from));
    }

    wire::Transport& transport_;
    const TrafficSchedule& schedule_;
    std::deque<Flight> sends_, receives_;
    std::vector<const TrafficSchedule::Item*> control_;
};

}  // namespace guozhuang::test
