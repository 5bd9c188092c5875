#include "gzrun_job.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <random>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace gzrun {

namespace {

using Clock = std::chrono::steady_clock;

/// This host's IPv4 addresses as other hosts may see them.
std::string addresses() {
    std::string found;
    ifaddrs* all = nullptr;
    getifaddrs(&all);
    for (const ifaddrs* each = all; each; each = each->ifa_next) {
        if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET) continue;
        char text[INET_ADDRSTRLEN] = "";
        inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text,
                  sizeof text);
        if (!std::string(text).starts_with("127.")) found += std::string(text) + ",";
    }
    freeifaddrs(all);
    return found;
}

std::string how(const Message& message, const std::string& program) {
    const int signal = WTERMSIG(message.status);
    if (message.error)
        return fmt::format("cannot run {}: {}", program, std::strerror(message.error));
    if (!WIFSIGNALED(message.status)) return fmt::format("exit code {}", code_of(message.status));
    return fmt::format("killed by signal {} ({})", signal, strsignal(signal));
}

}  // namespace

void Countdown::begin(std::chrono::seconds time) {
    const auto due = Clock::now() + time;
    if (!due_ || (next_ == SIGTERM && due < *due_)) due_ = due;
}

int Countdown::take() {
    if (!due_ || Clock::now() < *due_) return 0;
    due_ = Clock::now() + signal_interval;
    return std::exchange(next_, next_ == SIGTERM ? SIGKILL : nothing_helps);
}

unsigned Countdown::milliseconds_left() const {
    if (!due_) return static_cast<unsigned>(-1);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due_ - Clock::now());
    return static_cast<unsigned>(std::max<std::int64_t>(0, left.count()));
}

Job::Job(const Options& options)
    : options_(options), ranks_(static_cast<std::size_t>(options.ranks)) {
    std::random_device random;
    token_ = std::uint64_t{random()} << 32 | random();
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof own;
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    if (bind(listener_, address, size) != 0 || listen(listener_, SOMAXCONN) != 0 ||
        getsockname(listener_, address, &size) != 0)
        throw std::system_error(errno, std::generic_category(), "no port to listen on");
    port_ = ntohs(own.sin_port);
}

std::string Job::contact() const {
    return fmt::format("{}:{}:{}127.0.0.1", token_, port_, addresses());
}

int Job::run(const std::vector<std::string>& launcher_command) {
    sigset_t before;
    const sigset_t passed = passed_signals();
    sigprocmask(SIG_BLOCK, &passed, &before);
    const int signals = signalfd(-1, &passed, SFD_CLOEXEC);
    launcher_ = start(launcher_command, before);
    if (launcher_.error)
        throw std::system_error(launcher_.error, std::generic_category(), launcher_command[0]);
    const auto is_linked = [](const Rank& rank) { return rank.link >= 0; };
    while (!launcher_code_ || std::any_of(ranks_.begin(), ranks_.end(), is_linked)) {
        await_events(signals);
        if (const int signal = ranks_countdown_.take()) end_ranks(signal);
        if (const int signal = launcher_countdown_.take(); signal > 0 && !launcher_code_) {
            launcher_was_signalled_ = true;
            kill(launcher_.pid, signal);
        }
        release();
    }
    return verdict();
}

void Job::await_events(int signals) {
    std::vector<pollfd> watched{{signals, POLLIN, 0},
                                {listener_, POLLIN, 0},
                                {launcher_code_ ? -1 : launcher_.end, POLLIN, 0}};
    const auto others = watched.size();
    for (const auto& rank : ranks_) watched.push_back({rank.link, POLLIN, 0});
    const int limit = static_cast<int>(
        std::min({ranks_countdown_.milliseconds_left(), launcher_countdown_.milliseconds_left(),
                  blame_countdown_.milliseconds_left()}));
    if (poll(watched.data(), watched.size(), limit) < 0 && errno != EINTR)
        throw std::system_error(errno, std::generic_category(), "cannot watch so many ranks");
    if (watched[0].revents) pass_signal(signals);
    for (std::size_t i = 0; i < ranks_.size(); ++i)
        if (watched[others + i].revents) receive(ranks_[i]);
    if (watched[1].revents) accept_rank();
    if (watched[2].revents) launcher_ended();
}

void Job::accept_rank() {
    const int link = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (link < 0 && (errno == EINTR || errno == ECONNABORTED)) return;
    if (link < 0) throw std::system_error(errno, std::generic_category(), "cannot accept a rank");
    const timeval limit{1, 0};
    setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    Message message{};
    const bool known = recv(link, &message, sizeof message, MSG_WAITALL) == sizeof message &&
                       message.token == token_ && message.rank >= 0 &&
                       message.rank < options_.ranks &&
                       !ranks_[static_cast<std::size_t>(message.rank)].has_started;
    const char greeting = 0;
    if (known && send(link, &greeting, 1, MSG_NOSIGNAL) == 1)
        ranks_[static_cast<std::size_t>(message.rank)] = {link, true, false};
    else
        close(link);
}

void Job::receive(Rank& rank) {
    Message message{};
    if (recv(rank.link, &message, sizeof message, MSG_WAITALL) != sizeof message) {
        message.status = SIGKILL;  // of the whole group: nothing else ends its watching process
        close(std::exchange(rank.link, -1));
    }
    if (!rank.has_ended) record_end(rank, message);
}

void Job::record_end(Rank& rank, const Message& message) {
    rank.has_ended = true;
    const int code = message.error ? 2 : code_of(message.status);
    if (code == 0) return;
    ++failures_;
    if (too_many_failed()) ranks_countdown_.begin(std::chrono::seconds(options_.grace_s));
    if (first_failure_) return;
    first_failure_ = &rank;
    code_ = code;
    fmt::print(stderr, "gzrun: rank {} failed first: {}\n", &rank - ranks_.data(),
               how(message, options_.program[0]));
}

void Job::pass_signal(int signals) {
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof info) != sizeof info) return;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGUSR1 || signal == SIGUSR2) return signal_ranks(signal);
    ranks_countdown_.begin(std::chrono::seconds(options_.grace_s));
    // A terminal sends its signals to the launcher as well.
    if (info.ssi_code != SI_KERNEL && !launcher_code_) kill(launcher_.pid, signal);
}

void Job::launcher_ended() {
    int status = 0;
    waitpid(launcher_.pid, &status, 0);
    launcher_code_ = code_of(status);
    ranks_countdown_.begin(signal_interval);
}

void Job::signal_ranks(int signal) {
    const auto number = static_cast<unsigned char>(signal);
    for (const auto& rank : ranks_)
        if (rank.link >= 0 && !rank.has_ended) send(rank.link, &number, 1, MSG_NOSIGNAL);
}

void Job::end_ranks(int signal) {
    for (auto& rank : ranks_) {
        if (rank.link < 0 || rank.has_ended) continue;
        fmt::print(stderr, "gzrun: rank {} still runs: {}\n", &rank - ranks_.data(),
                   signal > 0 ? strsignal(signal) : "given up");
        if (signal < 0) close(std::exchange(rank.link, -1));
    }
    if (signal > 0) signal_ranks(signal);
    if (signal != SIGTERM) launcher_countdown_.begin(std::chrono::seconds(0));
}

/// Lets the watching processes end when no rank runs any more. The one of the rank that failed
/// first goes first, so that the launcher blames the same rank.
void Job::release() {
    if (!all_have_ended()) return;
    if (std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.has_ended; }))
        launcher_countdown_.begin(signal_interval);
    blame_countdown_.begin(std::chrono::seconds(first_failure_ && !launcher_code_ ? 1 : 0));
    const bool all = blame_countdown_.take() != 0;
    for (const auto& rank : ranks_)
        if (rank.link >= 0 && (all || &rank == first_failure_)) shutdown(rank.link, SHUT_WR);
}

/// Ranks that have not started will do so, unless the launcher has ended.
bool Job::all_have_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
        return rank.has_ended || (launcher_code_ && !rank.has_started);
    });
}

bool Job::too_many_failed() const {
    const int least = options_.least_ranks > 0 ? options_.least_ranks : options_.ranks;
    return failures_ > options_.ranks - least;
}

int Job::verdict() const {
    if (too_many_failed()) return code_;
    const auto missing = std::count_if(ranks_.begin(), ranks_.end(),
                                       [](const Rank& rank) { return !rank.has_ended; });
    // The launcher may blame ranks that have not finalised MPI after a death.
    const bool is_content =
        options_.least_ranks > 0 || launcher_was_signalled_ || *launcher_code_ == 0;
    if (missing == 0 && is_content) return 0;
    fmt::print(stderr, "gzrun: the launcher ended with code {}; {} of {} ranks returned 0\n",
               *launcher_code_, options_.ranks - missing - failures_, options_.ranks);
    return std::max(*launcher_code_, 1);
}

}  // namespace gzrun
