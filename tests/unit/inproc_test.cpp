#include "wire/inproc/inproc_transport.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <guozhuang/error.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/concepts/wire.hpp"
#include "support/fakes/inproc_ranks.hpp"
#include "support/oracles/traffic.hpp"
#include "support/runner/catch.hpp"
#include "wire/group/group_wire.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::wire;
using guozhuang::test::finish;
using guozhuang::test::run_inproc_ranks;

namespace {

constexpr Tag data{0, Lane::host_data, 0};
constexpr base::WaitSettings sleep_soon{.spin = 0us, .sleep_first = 60s, .sleep_limit = 60s};

template <class Act>
std::optional<ErrorCode> error_of(Act&& act) {
    try {
        act();
    } catch (const Error& error) {
        return error.code();
    }
    return std::nullopt;
}

/// Pumps by calling a function.
class FunctionPump final : public engine::Pump {
public:
    explicit FunctionPump(std::function<bool()> function) : function_(std::move(function)) {}
    bool pump() override { return function_(); }

private:
    std::function<bool()> function_;
};

}  // namespace

TEST_CASE("random traffic between ranks that are threads arrives whole and in order") {
    const int ranks = GENERATE(1, 2, 3, 4, 5, 7);
    const bool sleeps = GENERATE(false, true);
    const test::TrafficSchedule schedule(test::seed() + static_cast<unsigned>(ranks), ranks,
                                         60 * ranks, 20'000);
    const auto settings = sleeps ? std::optional(sleep_soon) : std::nullopt;
    REQUIRE_NOTHROW(run_inproc_ranks(
        ranks, [&](Transport& transport) { test::Traffic(transport, schedule).run(); }, settings));
}

TEST_CASE("data wakes the rank that sleeps for it") {
    const auto play = [](Transport& transport) {
        const std::vector<int> group_ranks{0, 1};
        const int self = transport.rank(), peer = 1 - self;
        GroupWire wire({.transport = transport,
                        .ranks = group_ranks,
                        .group_rank = self,
                        .tag = data,
                        .deadline = base::Clock::now() + 20s});
        std::array<std::byte, 4> bytes{};
        for (int turn = 0; turn < 2000; ++turn) {
            auto ticket = turn % 2 == self ? wire.send(bytes, peer) : wire.receive(bytes, peer);
            wire.wait(ticket);
        }
    };
    REQUIRE_NOTHROW(run_inproc_ranks(2, play, sleep_soon));
}

TEST_CASE("messages of one pair and tag arrive in order, whoever comes first") {
    std::vector<int> got(4);
    run_inproc_ranks(2, [&](Transport& transport) {
        std::array<int, 4> values{3, 1, 4, 1};
        std::vector<Transport::Ticket> tickets;
        for (std::size_t i = 0; i < 4; ++i) {
            tickets.push_back(
                transport.rank() == 0
                    ? transport.send(1, data, std::as_bytes(std::span(&values[i], 1)))
                    : transport.receive(0, data, std::as_writable_bytes(std::span(&got[i], 1))));
        }
        for (auto& ticket : tickets) finish(transport, ticket);
    });
    CHECK(got == std::vector{3, 1, 4, 1});
}

TEST_CASE("ranks that disagree about a length are told so") {
    std::atomic<int> errors{0};
    run_inproc_ranks(2, [&](Transport& transport) {
        std::array<std::byte, 8> bytes{};
        auto ticket = transport.rank() == 0 ? transport.send(1, data, bytes)
                                            : transport.receive(0, data, std::span(bytes).first(4));
        if (error_of([&] { finish(transport, ticket); }) == ErrorCode::wire) ++errors;
    });
    CHECK(errors == 2);
}

TEST_CASE("abort ends all waits, and nothing moves afterwards") {
    InprocHub hub(2, sleep_soon);
    const auto first = hub.transport(0), second = hub.transport(1);
    auto lent = std::make_unique<std::array<std::byte, 64>>();
    auto ticket = first->receive(1, data, *lent);
    std::thread breaker([&] { hub.abort(); });
    CHECK(error_of([&] { finish(*first, ticket); }) == ErrorCode::aborted);
    breaker.join();
    lent.reset();  // what a caller does that leaves with the exception
    std::array<std::byte, 64> bytes{};
    CHECK(error_of([&] { second->send(0, data, bytes); }) == ErrorCode::aborted);
    CHECK(error_of([&] { second->send(0, {0, Lane::control, 0}, bytes); }) == ErrorCode::aborted);
    CHECK(error_of([&] { second->close(); }) == ErrorCode::aborted);
}

TEST_CASE("what a rank abandons is given back, and it sends and receives no more") {
    InprocHub hub(2, sleep_soon);
    const auto first = hub.transport(0), second = hub.transport(1);
    std::array<std::byte, 8> lent{}, sent{}, other{};
    sent.fill(std::byte{1});
    first->receive(1, data, lent);
    first->send(1, data, sent);
    CHECK(first->abandon());
    sent.fill(std::byte{2});
    second->send(0, data, other);
    auto incoming = second->receive(0, data, other);
    CHECK(lent == std::array<std::byte, 8>{});
    CHECK_FALSE(second->test(incoming));
    CHECK(error_of([&] { first->receive(1, data, lent); }) == ErrorCode::aborted);
    CHECK(error_of([&] { first->send(1, {0, Lane::control, 0}, sent); }) == ErrorCode::aborted);
}

TEST_CASE("a wait that fails leaves no message behind") {
    InprocHub hub(2, sleep_soon);
    const auto first = hub.transport(0), second = hub.transport(1);
    const std::vector<int> group_ranks{0, 1};
    FunctionPump fails([]() -> bool { throw Error(ErrorCode::wire, "mine"); });
    GroupWire wire({.transport = *first,
                    .ranks = group_ranks,
                    .group_rank = 0,
                    .tag = data,
                    .pump = &fails,
                    .deadline = base::Clock::now() + 20s});
    std::array<std::byte, 8> lent{}, sent{};
    sent.fill(std::byte{1});
    auto ticket = wire.receive(lent, 1);
    CHECK(error_of([&] { wire.wait(ticket); }) == ErrorCode::wire);
    second->send(0, data, sent);
    CHECK(lent == std::array<std::byte, 8>{});
}

TEST_CASE("traffic counts data, not control") {
    Transport::Traffic sent;
    run_inproc_ranks(2, [&](Transport& transport) {
        std::array<std::byte, 100> bytes{};
        const int peer = 1 - transport.rank();
        transport.send(peer, {0, Lane::control, 0}, bytes);
        auto out = transport.send(peer, data, bytes);
        std::array<std::byte, 100> in{};
        auto incoming = transport.receive(peer, data, in);
        finish(transport, out);
        finish(transport, incoming);
        if (transport.rank() == 0) sent = transport.traffic();
    });
    CHECK(sent.bytes == 100);
    CHECK(sent.messages == 1);
}

TEST_CASE("a group wire speaks in group ranks") {
    const std::vector<int> group_ranks{2, 0};  // of three ranks, in another order
    std::array<int, 3> got{-1, -1, -1};
    run_inproc_ranks(3, [&](Transport& transport) {
        if (transport.rank() == 1) return;
        const int group_rank = transport.rank() == 2 ? 0 : 1;
        GroupWire wire({.transport = transport,
                        .ranks = group_ranks,
                        .group_rank = group_rank,
                        .tag = {5, Lane::host_data, 0}});
        const int mine = 10 + wire.rank();
        auto& theirs = got[static_cast<std::size_t>(transport.rank())];
        exchange(wire, std::as_bytes(std::span(&mine, 1)), 1 - group_rank,
                 std::as_writable_bytes(std::span(&theirs, 1)), 1 - group_rank);
    });
    CHECK(got == std::array{10, -1, 11});
}

TEST_CASE("a group wire pumps while it waits") {
    const std::vector<int> group_ranks{0, 1};
    const Tag question{0, Lane::control, 0}, answer{1, Lane::control, 0};
    int pumped = 0;
    // Rank 0 sends the data that rank 1 waits for only after rank 1's pump has answered it.
    run_inproc_ranks(
        2,
        [&](Transport& transport) {
            std::array<std::byte, 4> bytes{};
            FunctionPump reply([&] {
                if (!transport.poll(question)) return false;
                transport.send(0, answer, {});
                ++pumped;
                return true;
            });
            GroupWire wire({.transport = transport,
                            .ranks = group_ranks,
                            .group_rank = transport.rank(),
                            .tag = data,
                            .pump = &reply,
                            .deadline = base::Clock::now() + 20s});
            if (transport.rank() == 0) {
                transport.send(1, question, {});
                test::next_control(transport, answer);
                auto ticket = wire.send(bytes, 1);
                wire.wait(ticket);
            } else {
                auto ticket = wire.receive(bytes, 0);
                wire.wait(ticket);
            }
        },
        sleep_soon);
    CHECK(pumped == 1);
}

TEST_CASE("a group wire gives up at its deadline") {
    InprocHub hub(2, sleep_soon);
    const auto transport = hub.transport(0);
    const std::vector<int> group_ranks{0, 1};
    GroupWire wire({.transport = *transport,
                    .ranks = group_ranks,
                    .group_rank = 0,
                    .tag = data,
                    .deadline = base::Clock::now() + 5ms});
    std::array<std::byte, 4> bytes{};
    auto ticket = wire.receive(bytes, 1);
    CHECK(error_of([&] { wire.wait(ticket); }) == ErrorCode::timeout);
}
