// Watching processes: children of this one, which end in every way.
#include "wire/monitor.hpp"

#include <arpa/inet.h>
#include <csignal>
#include <fstream>
#include <netinet/tcp.h>
#include <optional>
#include <spawn.h>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/open_files.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using test::open_files;
using wire::Monitor;

namespace {

/// A child that runs a shell command.
class Child {
public:
    explicit Child(const std::string& command) {
        std::string shell = "sh", option = "-c", text = command;
        char* arguments[] = {shell.data(), option.data(), text.data(), nullptr};
        REQUIRE(posix_spawn(&pid_, "/bin/sh", nullptr, nullptr, arguments, environ) == 0);
        wire::Monitor::WatchedProcess self{.rank = 0, .id = base::this_process()};
        process_ = {.pid = pid_, .started = started(), .numbering = self.id.numbering};
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        reap();
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    const base::ProcessId& process() const { return process_; }
    void send(int signal) const { ::kill(pid_, signal); }
    void reap() {
        if (!std::exchange(reaped_, true)) waitpid(pid_, nullptr, 0);
    }

private:
    /// The 22nd field of its stat.
    std::uint64_t started() const {
        std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
        std::string field;
        for (int i = 0; i < 22; ++i) file >> field;
        return std::stoull(field);
    }

    pid_t pid_ = 0;
    bool reaped_ = false;
    base::ProcessId process_;
};

/// The end of a process, as a monitor has told it.
struct Ended {
    Monitor::WatchedProcess process;
    std::optional<int> status;
};

/// The ends that a monitor has told of.
class Ends {
public:
    std::function<bool(const Monitor::End&)> listener(std::size_t enough = 1) {
        return [this, enough](const Monitor::End& end) {
            const base::Lock lock(mutex_);
            ends_.push_back({end.process, end.status});
            base::ring(bell_, base::Sleepers::for_news);
            return ends_.size() == enough;
        };
    }
    std::vector<Ended> wait_for(std::size_t count) {
        CHECK(base::wait_until(
            bell_, {}, [&] { return so_far().size() >= count; }, base::Clock::now() + 20s));
        return so_far();
    }
    std::vector<Ended> so_far() {
        const base::Lock lock(mutex_);
        return ends_;
    }

private:
    base::Doorbell bell_;
    base::Mutex mutex_;
    std::vector<Ended> ends_ GUOZHUANG_GUARDED_BY(mutex_);
};

std::string how(const Ended& end) {
    return end.status ? base::describe_exit(*end.status) : "unknown";
}

/// No new file descriptors, for the life of this object.
class NoFiles {
public:
    NoFiles() {
        getrlimit(RLIMIT_NOFILE, &before_);
        const rlimit none{.rlim_cur = 3, .rlim_max = before_.rlim_max};
        setrlimit(RLIMIT_NOFILE, &none);
    }
    ~NoFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
    NoFiles(const NoFiles&) = delete;
    NoFiles& operator=(const NoFiles&) = delete;

private:
    rlimit before_{};
};

}  // namespace

TEST_CASE("the end of a process is told once, with its rank and how it ended") {
    Child killed("exec sleep 60"), exits("read line < /dev/null; exit 7"), stays("exec sleep 60");
    Ends ends;
    const Monitor monitor({{4, killed.process()}, {5, exits.process()}, {6, stays.process()}},
                          ends.listener(3));
    killed.send(SIGKILL);
    auto all = ends.wait_for(2);
    REQUIRE(all.size() == 2);
    if (all[0].process.rank == 5) std::swap(all[0], all[1]);
    CHECK(all[0].process.rank == 4);
    CHECK(how(all[0]) == "killed by signal 9 (Killed)");
    CHECK(all[1].process.rank == 5);
    CHECK(how(all[1]) == "exited with code 7");
}

TEST_CASE("a process that is stopped has not died") {
    Child child("exec sleep 60");
    Ends ends;
    const Monitor monitor({{1, child.process()}}, ends.listener());
    child.send(SIGSTOP);
    base::wait_for_files({}, 200ms);
    CHECK(ends.so_far().empty());
    child.send(SIGKILL);
    CHECK(ends.wait_for(1).size() == 1);
}

TEST_CASE(
    "a process that has ended before, or whose number is another's by now, is dead from the "
    "start") {
    Child child("exit 0");
    const auto self = base::this_process();
    const base::ProcessId another{
        .pid = self.pid, .started = self.started + 1, .numbering = self.numbering};
    child.reap();
    Ends ends;
    const Monitor monitor({{1, child.process()}, {2, another}}, ends.listener(2));
    CHECK(ends.wait_for(2).size() == 2);
}

TEST_CASE("a process that is not visible from here is not watched, and that is said") {
    const test::LogCapture log;
    auto process = base::this_process();
    ++process.numbering;
    Ends ends;
    { const Monitor monitor({{3, process}}, ends.listener()); }
    CHECK(ends.so_far().empty());
    CHECK(log.with("of rank 3 the process cannot be seen from here").size() == 1);
}

TEST_CASE("without descriptors a death is found by looking, after one warning") {
    const test::LogCapture log;
    Child one("exec sleep 60"), two("exec sleep 60");
    Ends ends;
    std::optional<Monitor> monitor;
    {
        const NoFiles none;
        monitor.emplace(
            std::vector<Monitor::WatchedProcess>{{1, one.process()}, {2, two.process()}},
            ends.listener());
        base::wait_for_files({}, 300ms);
        CHECK(ends.so_far().empty());  // that it cannot look means nothing
    }
    two.send(SIGKILL);
    const auto all = ends.wait_for(1);
    REQUIRE(all.size() == 1);
    CHECK(all[0].process.rank == 2);
    CHECK(how(all[0]) == "killed by signal 9 (Killed)");
    CHECK(log.with("pidfd_open").size() == 1);
}

TEST_CASE("without descriptors a process that is not there any more is found all the same") {
    Child child("exec sleep 60");
    Ends ends;
    std::optional<Monitor> monitor;
    const NoFiles none;
    monitor.emplace(std::vector<Monitor::WatchedProcess>{{1, child.process()}}, ends.listener());
    child.send(SIGKILL);
    child.reap();
    CHECK(ends.wait_for(1).size() == 1);
}

TEST_CASE("a monitor leaves no descriptor open") {
    const auto before = open_files();
    Child child("exec sleep 60");
    Ends ends;
    for (int i = 0; i < 10; ++i) {
        const Monitor monitor({{1, child.process()}}, ends.listener());
        CHECK(open_files() == before + 2);
    }
    CHECK(open_files() == before);
}

TEST_CASE("a death is described by its rank, host, pid and signal, and what it was doing") {
    const Monitor::WatchedProcess process{2, {.pid = 1234, .started = 1, .numbering = 1}};
    const auto start = "rank 2 (host " + base::host_name() + ", pid 1234) died";
    CHECK(wire::describe_death({process, SIGSEGV}, "during allreduce 'grad7'") ==
          start + " (killed by signal 11 (Segmentation fault)) during allreduce 'grad7'");
    CHECK(wire::describe_death({process}, "") == start);
}

namespace {

/// Both ends of a link, and what a monitor at one of them hears of the other.
struct Linked {
    wire::HostListener listener;
    std::shared_ptr<wire::HostLink> here =
        std::make_shared<wire::HostLink>(listener.endpoint(), 3, base::deadline_after(20s));
    std::shared_ptr<wire::HostLink> there = listener.accept(base::deadline_after(20s)).second;
    bool is_accepted = here->is_accepted(base::deadline_after(20s));
    std::atomic<int> ends{0};
    std::optional<Monitor> monitor{
        std::in_place,
        std::vector<Monitor::WatchedProcess>{
            {.rank = 7, .id = {.pid = 12}, .host = "far", .link = here}},
        [this](const Monitor::End& end) {
            if (!end.status && wire::describe_death(end, "") == "rank 7 (host far, pid 12) died")
                ++ends;
            return false;
        }};

    ~Linked() {
        here->close();
        there->close();
    }

    /// As the kernel does for a process that ends.
    void other_process_ends() const { shutdown(there->descriptor(), SHUT_RDWR); }
};

template <class Holds>
bool comes_true(const Holds& holds) {
    for (int look = 0; look < 2000 && !holds(); ++look) base::wait_for_files({}, 10ms);
    return holds();
}

}  // namespace

TEST_CASE(
    "a link to another host ends with the process at its other end, which may say why it quits") {
    const std::string reason =
        GENERATE(as<std::string>{}, "", "no such file", std::string(5000, 'x'));
    CAPTURE(reason);
    Linked linked;
    REQUIRE(linked.is_accepted);
    linked.there->say(reason);
    base::wait_for_files({}, 50ms);
    CHECK(linked.ends == 0);  // whoever quits may stay for a while
    linked.other_process_ends();
    CHECK(comes_true([&] { return linked.ends == 1; }));
    linked.monitor.reset();
    CHECK(linked.here->reason() == reason.substr(0, trace::Note::capacity));
    CHECK_FALSE(linked.here->was_closed());
}

TEST_CASE("a link knows who has connected, and whether the other side has accepted") {
    wire::HostListener listener;
    wire::HostLink here(listener.endpoint(), 3, base::deadline_after(20s));
    CHECK_FALSE(here.is_accepted(base::deadline_after(10ms)));
    const auto [rank, there] = listener.accept(base::deadline_after(20s));
    CHECK(rank == 3);
    CHECK(here.is_accepted(base::deadline_after(20s)));
    for (auto* const end : {&here, there.get()}) {
        for (const auto limit : {1ms, 1'000'000'000ms, 10'000ms}) {
            end->limit_silence(limit);
            int seconds = 0, milliseconds = 0;
            socklen_t size = sizeof seconds;
            const int descriptor = end->descriptor();
            REQUIRE(getsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &size) == 0);
            REQUIRE(getsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &size) ==
                    0);
            CHECK(seconds == (limit == 1ms ? 1 : limit == 10'000ms ? 5 : 15'000));
            CHECK(milliseconds == (limit == 1ms ? 1000 : limit == 10'000ms ? 10'000 : 30'000'000));
        }
        end->close();
    }
}

TEST_CASE("a link that has been closed may end") {
    const std::string reason = GENERATE(as<std::string>{}, "", std::string(5000, 'x'));
    Linked linked;
    linked.there->say(reason);  // as a rank does that refuses the others' settings
    linked.there->close();
    linked.other_process_ends();
    base::wait_for_files({}, 50ms);
    linked.monitor.reset();
    CHECK(linked.here->has_ended());
    CHECK(linked.here->was_closed());
    CHECK(linked.ends == 0);
}

TEST_CASE("a link that has not been closed stays open to the end of the process") {
    wire::HostListener listener;
    auto here = std::make_shared<wire::HostLink>(listener.endpoint(), 3, base::deadline_after(20s));
    const auto there = listener.accept(base::deadline_after(20s)).second;
    const bool closes = GENERATE(false, true);
    if (closes) here->close();
    here.reset();
    base::wait_for_files({}, 50ms);
    CHECK(there->has_ended() == closes);
    CHECK(there->was_closed() == closes);
    there->close();
}

TEST_CASE("a listener passes over strangers, and over those who have gone again") {
    wire::HostListener listener;
    auto stranger = listener.endpoint();
    stranger.token.front() ^= 1;
    wire::HostLink(stranger, 3, base::deadline_after(20s)).close();
    wire::HostLink here(listener.endpoint(), 3, base::deadline_after(20s));
    const auto there = listener.accept(base::deadline_after(20s)).second;
    here.close();
    CHECK(comes_true([&] { return there->has_ended() || there->was_closed(); }));
    there->close();
}

TEST_CASE("strangers that connect and are silent do not delay a listener") {
    wire::HostListener listener;
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = listener.endpoint().port;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::vector<std::unique_ptr<wire::Socket>> strangers;
    for (int each = 0; each < 100; ++each) {
        strangers.push_back(std::make_unique<wire::Socket>(wire::Socket::open(SOCK_STREAM)));
        const auto* const to = reinterpret_cast<const sockaddr*>(&name);
        ::connect(strangers.back()->descriptor(), to, sizeof name);  // goes on by itself
    }
    wire::HostLink here(listener.endpoint(), 3, base::deadline_after(20s));
    const auto there = listener.accept(base::deadline_after(20s)).second;
    here.close();
    CHECK(comes_true([&] { return there->has_ended() || there->was_closed(); }));
    there->close();
}

TEST_CASE("a link that is not accepted goes on to the next address") {
    wire::HostListener listener;
    auto endpoint = listener.endpoint();
    endpoint.addresses = {};
    for (const in_addr_t i : {0U, 1U, 2U})
        endpoint.addresses[2 * i].s_addr = htonl(INADDR_LOOPBACK + i);
    wire::HostLink first(endpoint, 3, base::deadline_after(20s));
    CHECK(first.rest().addresses[0].s_addr == INADDR_ANY);
    wire::HostLink second(first.rest(), 3, base::deadline_after(20s));
    wire::HostLink third(second.rest(), 3, base::deadline_after(20s));
    CHECK_THROWS_WITH(wire::HostLink(third.rest(), 3, base::deadline_after(20s)),
                      "it answers at none of its addresses");
    for (auto* const each : {&first, &second, &third}) each->close();
}

TEST_CASE("a link whose first packets are lost is tried again") {
    const wire::Socket busy(wire::Socket::open(SOCK_STREAM));
    auto endpoint = busy.bind();
    REQUIRE(listen(busy.descriptor(), 0) == 0);
    endpoint.addresses = {};
    endpoint.addresses.front().s_addr = htonl(INADDR_LOOPBACK);
    // The kernel drops what comes for a listener that has not accepted the one before.
    wire::HostLink first(endpoint, 3, base::deadline_after(20s));
    const auto start = base::Clock::now();
    std::jthread accepts([&] {
        base::wait_for_files({}, 700ms);
        for (int each = 0; each < 50; ++each) {
            const int descriptor = accept4(busy.descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
            if (descriptor >= 0) ::close(descriptor);
            base::wait_for_files({}, 50ms);
        }
    });
    wire::HostLink second(endpoint, 3, base::deadline_after(20s));
    CHECK(base::Clock::now() - start >= 500ms);  // the first attempt has failed
    for (auto* const each : {&first, &second}) each->close();
}

TEST_CASE("nobody at the other end: a link says so in time") {
    wire::Endpoint endpoint;
    CHECK_THROWS_WITH(wire::HostLink(endpoint, 3, base::deadline_after(20s)), "it does not listen");
    {
        const wire::HostListener listener;
        endpoint = listener.endpoint();
    }
    CHECK_THROWS_WITH(wire::HostLink(endpoint, 3, base::deadline_after(20s)),
                      "it answers at none of its addresses");
    wire::HostListener waits;
    CHECK_THROWS_AS(waits.accept(base::deadline_after(10ms)), Error);
    CHECK_THROWS_AS(waits.accept(base::deadline_after(0ms)), Error);
}

TEST_CASE("no descriptor is left: neither end of a link waits for one") {
    wire::HostListener listener;
    wire::HostLink here(listener.endpoint(), 3, base::deadline_after(20s));
    here.close();
    {
        const NoFiles none;
        CHECK_THROWS_WITH(wire::HostListener(), Catch::Contains("Too many open files"));
        CHECK_THROWS_WITH(listener.accept(base::deadline_after(20s)),
                          Catch::Contains("Too many open files"));
    }
    listener.accept(base::deadline_after(20s)).second->close();
}
