#include "wire/remote_bells.hpp"

#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "support/runner/catch.hpp"
#include "wire/monitor.hpp"
#include "wire/mpi/hosts.hpp"

using namespace guozhuang;
using namespace std::chrono_literals;

namespace {

constexpr auto of_the_world = base::audience_of(0);

bool has_mail(const wire::RemoteBells& bells, std::chrono::milliseconds limit = 20s) {
    pollfd file{bells.descriptor(), POLLIN, 0};
    return base::wait_for_files({&file, 1}, limit);
}

/// Ranks 0 and 1, each on a host of its own.
struct TwoHosts {
    explicit TwoHosts(bool strangers = false) {
        std::vector<wire::Endpoint> endpoints{zero.endpoint(), one.endpoint()};
        one.connect(1, endpoints);
        if (strangers) endpoints[1].token[0] ^= 1;
        zero.connect(0, endpoints);
        bell.asleep(base::Sleepers::for_news) = 1;
    }
    wire::RemoteBells zero, one;
    base::Doorbell bell;  ///< of rank 1, where a thread sleeps
};

}  // namespace

TEST_CASE("a rank of another host is rung, and each knows from then on where the other is") {
    TwoHosts two;
    two.zero.ring(1, of_the_world);
    REQUIRE(has_mail(two.one));
    CHECK(two.one.receive(two.bell));
    CHECK(two.bell.rings == 1);
    CHECK(two.one.has_heard(0));
    REQUIRE(has_mail(two.zero));
    base::Doorbell of_zero;
    CHECK_FALSE(two.zero.receive(of_zero));  // an answer rings nobody
    CHECK(two.zero.has_heard(1));
    while (two.one.receive(two.bell)) {
    }
    two.zero.ring(1, of_the_world);
    REQUIRE(has_mail(two.one));
    CHECK(two.one.receive(two.bell));
    CHECK_FALSE(has_mail(two.one, 0ms));  // it goes to one address
    CHECK_FALSE(has_mail(two.zero, 50ms));
}

TEST_CASE("messages that no datagram announces show that they do not arrive") {
    TwoHosts two;
    const auto message = [&] { two.one.count_message(0); };
    message();
    message();
    CHECK_FALSE(two.one.are_silent());
    message();
    CHECK(two.one.are_silent());
    two.zero.ring(1, 0);  // an answer, or another one that rings nobody
    REQUIRE(has_mail(two.one));
    two.one.receive(two.bell);
    CHECK(two.one.are_silent());
    two.zero.ring(1, of_the_world);
    REQUIRE(has_mail(two.one));
    two.one.receive(two.bell);
    CHECK_FALSE(two.one.are_silent());
    for (int each = 0; each < 3; ++each) two.one.count_message(1);  // of another rank
    two.zero.ring(1, of_the_world);
    REQUIRE(has_mail(two.one));
    two.one.receive(two.bell);
    CHECK(two.one.are_silent());
}

TEST_CASE("nobody sleeps: a datagram wakes nobody") {
    TwoHosts two;
    two.bell.asleep(base::Sleepers::for_news) = 0;
    two.zero.ring(1, of_the_world);
    REQUIRE(has_mail(two.one));
    CHECK_FALSE(two.one.receive(two.bell));
    CHECK(two.bell.rings == 0);
}

TEST_CASE("strangers ring nobody: without the token, too short, of a rank that there is not") {
    TwoHosts two(true);
    two.zero.ring(1, of_the_world);
    REQUIRE(has_mail(two.one));
    CHECK_FALSE(two.one.receive(two.bell));
    CHECK_FALSE(two.one.has_heard(0));

    TwoHosts job;
    const auto endpoint = job.one.endpoint();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = endpoint.port;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct {
        decltype(endpoint.token) token;
        std::int32_t from = 0;
        base::Audience audience = base::everybody;
        std::uint32_t wants_answer = 1, room = 0;
        std::int32_t about = -1;
    } rubbish{endpoint.token};
    const wire::Socket stranger(wire::Socket::open(SOCK_DGRAM));
    for (const int from : {-1, 2, 1 << 30, 0}) {
        rubbish.from = from;
        const auto bytes = from == 0 ? sizeof rubbish - 4 : sizeof rubbish;
        REQUIRE(sendto(stranger.descriptor(), &rubbish, bytes, 0,
                       reinterpret_cast<const sockaddr*>(&to), sizeof to) > 0);
        REQUIRE(has_mail(job.one));
        CHECK_FALSE(job.one.receive(job.bell));
    }
    CHECK(job.bell.rings == 0);
    CHECK_FALSE(job.one.has_heard(0));
}

TEST_CASE("a rank of another host says what it does, in as much room as there is") {
    TwoHosts two;
    const std::vector<int> there{1};
    trace::RankStatus theirs{.process = "pid 7, running", .doing = "during init"};
    for (int each = 0; each < 64; ++each)
        theirs.waiting.push_back({"allreduce", std::string(200, 'x')});
    const wire::RemoteBells::LookAt nobody,
        look_at = [&](int rank) { return rank == 1 ? std::optional(theirs) : std::nullopt; };
    base::Doorbell of_zero;
    /// Asks until there is an answer with so many operations; so many questions are lost before.
    const auto ask = [&](std::size_t waiting, int lost = 0) {
        for (;;) {
            const auto status = two.zero.ask(1, there);
            REQUIRE(status);
            if (!status->is_awaited && status->waiting.size() == waiting) return *status;
            CHECK((status->is_awaited == status->process.empty()));
            if (has_mail(two.one, 30ms))
                CHECK_FALSE(two.one.receive(two.bell, lost-- > 0 ? nobody : look_at));
            if (has_mail(two.zero, 0ms)) CHECK_FALSE(two.zero.receive(of_zero));
        }
    };
    const auto long_one = ask(37);
    CHECK(long_one.is_crowded);
    CHECK(long_one.process == theirs.process);
    theirs.waiting.pop_back();
    CHECK(ask(6, 2).is_crowded);  // fits a packet, since long answers may get lost
    CHECK(ask(37).is_crowded);
    theirs.waiting.clear();
    CHECK_FALSE(ask(0).is_crowded);
    CHECK(two.bell.rings == 0);
    // It falls silent, while nobody asks.
    std::this_thread::sleep_for(750ms);
    const auto start = base::Clock::now();
    auto status = two.zero.ask(1, there);
    while (status && (status->is_awaited || !status->process.empty()))
        status = two.zero.ask(1, there);
    CHECK(base::Clock::now() - start >= 900ms);
    REQUIRE(status);
    CHECK_FALSE(status->is_awaited);
}

TEST_CASE("a neighbour is asked about a rank that does not answer, and nobody in vain for long") {
    wire::RemoteBells zero, one, two;
    const std::vector<wire::Endpoint> endpoints{zero.endpoint(), one.endpoint(), two.endpoint()};
    zero.connect(0, endpoints);
    two.connect(2, endpoints);
    const std::vector<int> there{1, 2};
    base::Doorbell bell;
    std::optional<trace::RankStatus> status;
    while ((status = zero.ask(1, there)) && status->is_awaited) {
    }
    CHECK_FALSE(status);  // nobody has ever been heard: there may be a firewall
    const auto look_at = [](int rank) {
        return rank == 1 ? std::optional(
                               trace::RankStatus{.process = "pid 7, stopped", .is_stopped = true})
                         : std::nullopt;
    };
    while (!(status = zero.ask(1, there)) || status->process.empty()) {
        if (has_mail(two, 5ms)) two.receive(bell, look_at);
        if (has_mail(zero, 5ms)) zero.receive(bell);
    }
    CHECK(status->is_stopped);
    CHECK_FALSE(has_mail(zero, 0ms));
}

TEST_CASE("a monitor takes datagrams on its thread, seldom if nobody sleeps") {
    TwoHosts two;
    std::atomic<int> taken{0};
    std::atomic<bool> sleeps{false};
    const auto take = [&] {
        two.one.receive(two.bell);
        ++taken;  // no datagram is lost from now on
        return sleeps.load();
    };
    const wire::Monitor monitor({}, [](const auto&) { return false; }, LogLevel::warning,
                                {two.one.descriptor(), take});
    const auto start = base::Clock::now();
    while (taken < 10) two.zero.ring(1, of_the_world);
    CHECK(base::Clock::now() - start >= 9ms);
    sleeps = true;
    const int before = taken;
    two.zero.ring(1, of_the_world);
    base::Doorbell nobody;
    base::wait_until(nobody, {.spin = 1us}, [&] { return taken > before; });
}

TEST_CASE("how long a rank sleeps follows from who rings it") {
    wire::mpi::Host host;
    host.topology = {.rank = 0, .host_of = {0, 1}};
    host.hosts = 2;
    const auto longest = [&] { return wire::mpi::wait_settings_of(host, {}).sleep_limit; };
    CHECK_FALSE(wire::mpi::rings_for_all(host));
    CHECK(longest() == 1ms);  // without memory
    host.memory = wire::HostMemory::create(1);
    CHECK(longest() == 1ms);  // without bells
    host.remote_bells = std::make_unique<wire::RemoteBells>();
    CHECK(longest() == 10ms);
    auto& bells = *host.remote_bells;
    bells.connect(0, std::vector<wire::Endpoint>(2));
    CHECK(wire::mpi::longest_sleep_us(host, false) > 1'000'000);
    CHECK(wire::mpi::longest_sleep_us(host, true) == 100);
    for (int each = 0; each < 3; ++each) bells.count_message(1);
    CHECK(wire::mpi::longest_sleep_us(host, false) == 1000);
    host.hosts = 1;
    CHECK(wire::mpi::rings_for_all(host));
}
