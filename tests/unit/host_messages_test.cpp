#include "wire/shm/host_messages.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <guozhuang/error.hpp>
#include <random>
#include <string>
#include <thread>

#include "support/runner/catch.hpp"

namespace guozhuang::wire {
namespace {

constexpr std::uint16_t context = 7, other_context = 8;

/// The ranks of a host, as they are in one process.
class Host {
public:
    explicit Host(int ranks)
        : memory_((MessageRings::bytes_for(ranks) + sizeof(Line) - 1) / sizeof(Line)),
          bells_(static_cast<std::size_t>(ranks)) {
        rings().initialise();
        std::vector<HostMessages::HostRank> host_ranks;
        for (int rank = 0; rank < ranks; ++rank) host_ranks.push_back({rank, bell(rank)});
        for (int rank = 0; rank < ranks; ++rank) messages_.emplace_back(rings(), host_ranks, rank);
    }

    MessageRings rings() {
        return {.memory = std::as_writable_bytes(std::span(memory_)),
                .ranks = static_cast<int>(bells_.size())};
    }
    base::Doorbell& bell(int rank) { return bells_[static_cast<std::size_t>(rank)]; }
    HostMessages& operator[](int rank) { return messages_[static_cast<std::size_t>(rank)]; }

private:
    struct alignas(64) Line {
        std::byte bytes[64];
    };
    std::vector<Line> memory_;
    std::deque<base::Doorbell> bells_;
    std::deque<HostMessages> messages_;
};

/// Different from its neighbours, at every length.
std::vector<std::byte> content_of(std::size_t bytes, unsigned seed) {
    std::vector<std::byte> content(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        content[i] = static_cast<std::byte>(seed + i * 31 + i / 251);
    return content;
}

std::size_t ring_bytes(int ranks) {
    return Host(ranks).rings().bytes(0, 0).size();
}

}  // namespace

TEST_CASE("the messages of a sender arrive in order, those of each context for themselves") {
    Host host(3);
    for (unsigned i = 0; i < 3; ++i) {
        host[2].send(0, context, content_of(i, i));
        host[2].send(0, other_context, content_of(10 + i, i));
    }
    host[0].send(0, context, content_of(5, 9));
    CHECK(host[1].poll(context) == std::nullopt);
    for (unsigned i = 0; i < 3; ++i)
        CHECK(host[0].poll(other_context)->bytes == content_of(10 + i, i));
    CHECK(host[0].poll(other_context) == std::nullopt);
    std::vector<unsigned> heard(3, 0);
    for (unsigned i = 0; i < 4; ++i) {
        const auto message = host[0].poll(context);
        const auto number = heard[static_cast<std::size_t>(message->from)]++;
        CHECK(message->bytes ==
              (message->from == 2 ? content_of(number, number) : content_of(5, 9)));
    }
    CHECK(heard == std::vector<unsigned>{1, 0, 3});
    CHECK(host[0].poll(context) == std::nullopt);
}

TEST_CASE("messages of every length arrive, also those that a ring has no room for") {
    Host host(2);
    const auto ring = ring_bytes(2);
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, ring - 9, ring - 8, ring - 7,
                                    ring, 3 * ring + 1, 10 * ring}) {
        for (unsigned i = 0; i < 3; ++i) host[0].send(1, context, content_of(bytes, i));
        for (unsigned i = 0; i < 3; ++i) {
            auto message = host[1].poll(context);
            for (int turn = 0; !message && turn < 100; ++turn) {
                host[0].flush();
                message = host[1].poll(context);
            }
            REQUIRE(message.has_value());
            CHECK(message->bytes == content_of(bytes, i));
        }
        CHECK(host[0].flush());
    }
}

TEST_CASE("a sender that waits for room is woken when there is some, though it expects nothing") {
    Host host(2);
    const auto receiver_rings = host.bell(1).rings.load();
    host[0].send(1, context, content_of(3 * ring_bytes(2), 1));
    CHECK(host.bell(1).rings.load() != receiver_rings);  // nor does the receiver
    CHECK_FALSE(host[0].flush());
    const auto rings = host.bell(0).rings.load();
    CHECK(host[1].poll(context) == std::nullopt);
    CHECK(host.bell(0).rings.load() != rings);
}

TEST_CASE("a rank that polls no more makes room for those who still send") {
    Host host(2);
    host[0].send(1, context, content_of(5 * ring_bytes(2), 1));
    for (int turn = 0; turn < 10; ++turn) {
        host[1].discard();
        host[0].flush();
    }
    CHECK(host[0].flush());
}

TEST_CASE("a rank that died in the middle of a message does not keep the others' from arriving") {
    Host host(3);
    RingWriter dying(host.rings().ring(1, 0), host.rings().bytes(1, 0));
    dying.put(content_of(3, 0));  // of a head of 8 bytes
    dying.publish();
    host[2].send(0, context, content_of(4, 2));
    CHECK(host[0].poll(context)->from == 2);
    CHECK(host[0].poll(context) == std::nullopt);
}

TEST_CASE("what cannot be a message is an error that names its sender") {
    Host host(2);
    RingWriter broken(host.rings().ring(1, 0), host.rings().bytes(1, 0));
    const std::uint32_t head[2] = {std::uint32_t{1} << 31, context};
    broken.put(std::as_bytes(std::span(head)));
    broken.publish();
    CHECK_THROWS_WITH(
        host[0].poll(context),
        Catch::Matchers::Contains("rank 1 sent a control message of 2147483648 bytes"));
    host.rings().ring(0, 1).written = ring_bytes(2) + 1;
    CHECK_THROWS_AS(host[1].poll(context), Error);
}

TEST_CASE("ranks that spin little, and mostly sleep, exchange messages of all lengths") {
    constexpr int ranks = 3;
    constexpr unsigned rounds = 300;
    Host host(ranks);
    const auto ring = ring_bytes(ranks);
    const auto bytes_of = [&](int from, int to, unsigned round) {  // mostly short ones
        std::mt19937 random(static_cast<unsigned>((from * ranks + to)) * 1000 + round);
        return random() % (random() % 20 == 0 ? 4 * ring : 100);
    };
    const base::WaitSettings settings{.spin = std::chrono::microseconds(1),
                                      .sleep_limit = std::chrono::seconds(20)};
    std::atomic<int> wrong{0}, finished{0};
    const auto run = [&](int self) {
        auto& messages = host[self];
        std::vector<unsigned> heard(ranks, 0);  // messages, of each rank
        for (unsigned round = 0; round < rounds; ++round) {
            for (int to = 0; to < ranks; ++to)
                messages.send(to, context, content_of(bytes_of(self, to, round), round));
            base::wait_until(host.bell(self), settings, [&] {
                while (const auto message = messages.poll(context)) {
                    const auto number = heard[static_cast<std::size_t>(message->from)]++;
                    if (message->bytes != content_of(bytes_of(message->from, self, number), number))
                        ++wrong;
                }
                return messages.flush() && std::ranges::min(heard) > round;
            });
        }
        ++finished;
    };
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
    threads.clear();
    CHECK(wrong == 0);
    CHECK(finished == ranks);
}

}  // namespace guozhuang::wire
