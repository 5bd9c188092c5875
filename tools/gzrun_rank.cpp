// The process that a launcher starts for each rank: it starts the rank and watches it.

#include <arpa/inet.h>
#include <cerrno>
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sstream>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include "gzrun_link.hpp"

namespace gzrun {

namespace {

constexpr int signal_interval_ms =
    std::chrono::duration_cast<std::chrono::milliseconds>(signal_interval).count();

/// A connection with a gzrun that knows the message's token, or -1.
int try_address(const std::string& address, std::uint16_t port, const Message& message) {
    const int link = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{signal_interval.count(), 0};
    setsockopt(link, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // of connect(), too
    setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(port);
    inet_pton(AF_INET, address.c_str(), &peer.sin_addr);
    char greeting = 1;
    if (connect(link, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0 &&
        send(link, &message, sizeof message, MSG_NOSIGNAL) == sizeof message &&
        recv(link, &greeting, 1, 0) == 1 && greeting == 0)
        return link;
    close(link);
    return -1;
}

int connect_to(const std::string& contact, Message& message) {
    std::istringstream in(contact);
    std::uint16_t port = 0;
    char colon = 0;
    in >> message.token >> colon >> port >> colon;
    for (std::string address; std::getline(in, address, ',');)
        if (const int link = try_address(address, port, message); link >= 0) return link;
    throw std::runtime_error(fmt::format("rank {} cannot reach gzrun at port and addresses {}",
                                         message.rank, contact.substr(contact.find(':') + 1)));
}

/// Passes signals on until the process has ended; returns its wait status.
int await_end(const Process& process, int link) {
    bool connected = true;
    for (int signal = SIGTERM;;) {
        pollfd watched[] = {{process.end, POLLIN, 0}, {connected ? link : -1, POLLIN, 0}};
        const int ready = poll(watched, 2, connected ? -1 : signal_interval_ms);
        if (watched[0].revents) break;
        unsigned char number = 0;
        if (watched[1].revents && recv(link, &number, 1, 0) == 1) {
            kill(process.pid, number);
        } else if (watched[1].revents || ready == 0) {  // gzrun is gone: so is the job
            connected = false;
            kill(process.pid, signal);
            signal = SIGKILL;
        }
    }
    int status = 0;
    waitpid(process.pid, &status, 0);
    return status;
}

/// gzrun gives it when all ranks have ended, the launcher when it ends the job by SIGTERM.
void await_permission(int link) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    std::signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    for (char byte = 0; recv(link, &byte, 1, 0) == 1;) continue;
}

void end_by(int signal) {
    const rlimit none{};
    setrlimit(RLIMIT_CORE, &none);  // the rank has written one, if any is wanted
    sigset_t all;
    sigfillset(&all);
    std::signal(signal, SIG_DFL);
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &all, nullptr);
}

}  // namespace

sigset_t passed_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
    return set;
}

Process start(const std::vector<std::string>& command, const sigset_t& blocked) {
    std::signal(SIGCHLD, SIG_DFL);  // whoever started this process may have ignored it
    std::vector<char*> words;
    words.reserve(command.size() + 1);
    for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &blocked);
    Process process;
    process.error =
        posix_spawnp(&process.pid, words[0], nullptr, &attributes, words.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (process.error != 0) return process;
    process.end = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
    if (process.end < 0) {
        const int error = errno;
        kill(process.pid, SIGKILL);
        throw std::system_error(error, std::generic_category(), "pidfd_open, which gzrun needs");
    }
    return process;
}

int code_of(int status) {
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int watch_rank(const std::string& contact, const std::string& rank_variable,
               const std::vector<std::string>& command) {
    sigset_t before;
    const sigset_t passed = passed_signals();
    sigprocmask(SIG_BLOCK, &passed, &before);
    Message message{};
    CLI::App environment;
    environment.add_option("--rank", message.rank)->envname(rank_variable)->required();
    environment.parse(std::vector<std::string>{});
    const int link = connect_to(contact, message);
    const timeval forever{};
    setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);

    const Process process = start(command, before);
    message.error = process.error;
    message.status = process.error ? 0 : await_end(process, link);
    send(link, &message, sizeof message, MSG_NOSIGNAL);
    await_permission(link);
    if (WIFSIGNALED(message.status)) end_by(WTERMSIG(message.status));
    return process.error ? 2 : code_of(message.status);
}

}  // namespace gzrun
