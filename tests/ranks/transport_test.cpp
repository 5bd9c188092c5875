// The MPI transport from the inside: ranks that mpirun started talk to each other without the
// engine above them.
#include "wire/mpi/mpi_transport.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <guozhuang/error.hpp>
#include <guozhuang/interop/mpi.hpp>
#include <mpi.h>

#include "support/oracles/traffic.hpp"
#include "support/runner/catch.hpp"
#include "wire/group/control_channel.hpp"
#include "wire/group/group_wire.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::wire;
using guozhuang::test::finish;

namespace {

constexpr Tag data{0, Lane::host_data, 0};

/// Whether something holds on all ranks: what may be required.
bool everywhere(bool here) {
    int mine = here ? 1 : 0, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all != 0;
}

/// The text of the error that the act ends with; empty if it ends well.
template <class Act>
std::string failure_of(Act&& act) {
    try {
        act();
    } catch (const std::exception& error) {
        return error.what();
    }
    return {};
}

std::size_t open_files() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        ++count;
    return count;
}

}  // namespace

TEST_CASE("a message to the right neighbour, and one from the left") {
    const auto transport = connect();
    const int rank = transport->rank(), size = transport->size();
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    const std::array<std::byte, 3> out{std::byte(rank), std::byte{42}, std::byte{43}};
    std::array<std::byte, 3> in{};
    auto received = transport->receive(left, data, in);
    auto sent = transport->send(right, data, out);
    finish(*transport, received);
    finish(*transport, sent);
    CHECK(in == std::array{std::byte(left), std::byte{42}, std::byte{43}});
    transport->close();
}

// 40 random messages a rank between random pairs on random tags, drawn by one seed on all ranks:
// each receiver compares what arrives with what the seed says. With and without shared memory, with
// and without spinning, with messages whole and cut.
TEST_CASE("random traffic between all ranks arrives whole and in order") {
    MpiOptions options;
    options.config.shared_memory = GENERATE(true, false);
    options.config.spin_us = GENERATE(0u, 20u);
    options.split_bytes = GENERATE(std::size_t{1} << 30, std::size_t{1000});
    const auto transport = connect(options);
    const test::TrafficSchedule schedule(test::seed(), transport->size(), 40 * transport->size(),
                                         60'000);
    const auto failure = failure_of([&] { test::Traffic(*transport, schedule).run(); });
    INFO(failure);
    REQUIRE(everywhere(failure.empty()));
    transport->close();
}

TEST_CASE("the transport knows the job and the host as MPI does") {
    const auto transport = connect();
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(transport->rank() == rank);
    CHECK(transport->size() == size);
    // The tests run on one host.
    CHECK(transport->topology().host_of == std::vector<int>(static_cast<std::size_t>(size)));
    CHECK(transport->topology().hosts() == 1);
    CHECK(std::string(transport->description()).find("MPI") != std::string::npos);
    transport->close();
}

TEST_CASE("ranks that are told so take each other for ranks of several hosts") {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const bool all_share = GENERATE(true, false);
    MpiOptions options;
    options.config.shared_memory = all_share || rank != size - 1;
    options.config.simulated_host = 7 - rank % 2;
    const auto transport = connect(options);
    std::vector<int> hosts;
    for (int each = 0; each < size; ++each) hosts.push_back(each % 2);
    CHECK(transport->topology().host_of == hosts);
    CHECK(transport->topology().hosts() == std::min(size, 2));
    CHECK((transport->stage_bytes() > 0) == all_share);  // if one rank has none, none uses its own
    for (int other = 0; all_share && other < size; ++other) {
        auto status = transport->look_at(other);
        while (status && status->is_awaited) status = transport->look_at(other);
        REQUIRE(status);
        CHECK_THAT(status->process, Catch::Matchers::StartsWith("pid "));
    }
    const test::TrafficSchedule schedule(test::seed(), size, 20 * size, 60'000);
    const auto failure = failure_of([&] { test::Traffic(*transport, schedule).run(); });
    INFO(failure);
    REQUIRE(everywhere(failure.empty()));
    transport->close();
}

TEST_CASE("a user's communicator gives the ranks of that communicator") {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm reversed = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    const auto transport = connect({.communicator = mpi_communicator(reversed)});
    MPI_Comm_free(&reversed);  // ours is a duplicate
    CHECK(transport->rank() == size - 1 - rank);
    int arrived = -1;
    const auto group_ranks = topology::all_ranks(size);
    GroupWire wire({.transport = *transport,
                    .ranks = group_ranks,
                    .group_rank = transport->rank(),
                    .tag = data});
    const int right = (wire.rank() + 1) % size, left = (wire.rank() + size - 1) % size;
    exchange(wire, std::as_bytes(std::span(&rank, 1)), right,
             std::as_writable_bytes(std::span(&arrived, 1)), left);
    CHECK(arrived == size - 1 - left);
    transport->close();
}

TEST_CASE("connect and close may follow each other as often as one likes, and overlap") {
    connect()->close();
    const auto files = open_files();
    for (int cycle = 0; cycle < 20; ++cycle) {
        const auto first = connect(), second = connect();
        std::array<std::byte, 4> out{}, in{};
        auto sent = first->send(first->rank(), data, out);
        auto received = first->receive(first->rank(), data, in);
        finish(*first, sent);
        finish(*first, received);
        first->close();
        first->close();
        second->close();
    }
    CHECK(open_files() == files);
}

TEST_CASE("wrong use is an error and nothing else") {
    const auto transport = connect();
    const int self = transport->rank();
    std::array<std::byte, 8> bytes{}, short_buffer{};
    CHECK_THROWS_AS(transport->send(transport->size(), data, bytes), Error);  // MPI's own error
    CHECK_THROWS_AS(transport->send(self, {4096, Lane::host_data, 0}, bytes), Error);
    CHECK_THROWS_AS(transport->receive(self, {0, Lane::control, 0}, bytes), Error);
    CHECK_NOTHROW([&] {
        const Tag largest{4095, Lane::point_to_point, 100};
        auto sent = transport->send(self, largest, bytes);
        auto received = transport->receive(self, largest, bytes);
        finish(*transport, sent);
        finish(*transport, received);
    }());

    auto sent = transport->send(self, data, bytes);
    auto spent = sent;
    auto received = transport->receive(self, data, std::span(short_buffer).first(4));
    CHECK_THROWS_AS(finish(*transport, received), Error);
    finish(*transport, sent);
    CHECK(transport->test(sent));
    CHECK_THROWS_AS(transport->test(spent), Error);
    transport->close();
}

TEST_CASE("a transport does not close over messages in flight, nor serve after it is closed") {
    const auto transport = connect();
    std::array<std::byte, 4> out{}, in{};
    auto received = transport->receive(transport->rank(), data, in);
    CHECK_THROWS_AS(transport->close(), Error);
    auto sent = transport->send(transport->rank(), data, out);
    finish(*transport, received);
    finish(*transport, sent);
    transport->close();
    CHECK_THROWS_AS(transport->send(transport->rank(), data, out), Error);
    CHECK_THROWS_AS(transport->poll({}), Error);
}

TEST_CASE("long control messages do not overtake each other") {
    const auto transport = connect();
    const int size = transport->size(), right = (transport->rank() + 1) % size,
              left = (transport->rank() + size - 1) % size;
    ControlChannel channel(*transport, {}, topology::all_ranks(size));
    const std::array<std::size_t, 4> lengths{3'000'000, 10, 200'000, 0};
    for (const auto length : lengths)
        channel.send(right, std::vector<std::byte>(length, std::byte{7}));
    std::vector<std::size_t> arrived;
    int from = left;
    base::wait_until(transport->doorbell(), transport->wait_settings(), [&] {
        while (const auto message = channel.poll()) {
            arrived.push_back(message->bytes.size());
            if (message->from != left) from = message->from;
        }
        return arrived.size() == lengths.size() && channel.flushed();
    });
    CHECK(arrived == std::vector(lengths.begin(), lengths.end()));
    CHECK(from == left);
    transport->close();
}

TEST_CASE("a message rings where there are doorbells") {
    const bool shared = GENERATE(true, false);
    MpiOptions options;
    options.config.shared_memory = shared;
    const auto transport = connect(options);
    const int size = transport->size(), right = (transport->rank() + 1) % size,
              left = (transport->rank() + size - 1) % size;
    std::array<std::byte, 4> out{}, in{};
    auto received = transport->receive(left, data, in);
    const auto before = transport->doorbell().rings.load();
    REQUIRE(everywhere(true));
    auto sent = transport->send(right, data, out);
    REQUIRE(everywhere(true));  // so every message has been sent, and nobody has waited
    CHECK((transport->doorbell().rings.load() != before) == shared);
    finish(*transport, received);
    finish(*transport, sent);
    transport->close();
}

TEST_CASE("who looks after one message wakes the thread that sleeps for another") {
    const auto transport = connect();
    const int size = transport->size(), right = (transport->rank() + 1) % size,
              left = (transport->rank() + size - 1) % size;
    constexpr Tag later{0, Lane::host_data, 1};
    std::array<std::byte, 4> out{}, in{}, other{};
    auto sent = transport->send(right, data, out);
    finish(*transport, sent);
    REQUIRE(everywhere(true));  // so every ring has been made
    auto slept_for = transport->receive(left, data, in);
    auto looked_after = transport->receive(left, later, other);
    auto& bell = transport->doorbell();
    ++bell.asleep(base::Sleepers::for_news);  // as a thread does before its last look
    const auto before = bell.rings.load();
    const auto woken = [&] { return transport->test(looked_after) || bell.rings.load() != before; };
    bool in_time = false;
    const auto failure = failure_of([&] {
        in_time =
            base::wait_until(bell, transport->wait_settings(), woken, base::Clock::now() + 20s);
    });
    --bell.asleep(base::Sleepers::for_news);
    CHECK((failure == "" && in_time));
    REQUIRE(everywhere(true));
    auto last = transport->send(right, later, out);
    for (auto* ticket : {&slept_for, &looked_after, &last}) finish(*transport, *ticket);
    transport->close();
}

TEST_CASE("abort ends a wait for a rank that says nothing") {
    MpiOptions options;
    options.config.spin_us = 0;
    const auto transport = connect(options);
    std::array<std::byte, 4> out{}, in{};
    auto received = transport->receive(transport->rank(), data, in);
    std::thread breaker([&] { base::abort(transport->doorbell()); });
    CHECK_THROWS_AS(finish(*transport, received), Error);
    breaker.join();
    transport->doorbell().abort = 0;  // this job goes on
    auto sent = transport->send(transport->rank(), data, out);
    finish(*transport, received);
    finish(*transport, sent);
    transport->close();
}
