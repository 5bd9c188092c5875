// Notices of another host that the job has ended, and messages that are no such notice.
#include "wire/mpi/abort_notice.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <guozhuang/error.hpp>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "support/runner/catch.hpp"

namespace guozhuang::wire::mpi {
namespace {

Messages::Message message_of(const AbortNotice& notice) {
    Messages::Message message{.from = 3, .bytes = std::vector<std::byte>(sizeof notice)};
    std::memcpy(message.bytes.data(), &notice, sizeof notice);
    return message;
}

std::string refusal_of(const Messages::Message& message) {
    try {
        AbortNotice::from(message);
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::wire);
        CHECK(error.ranks() == std::vector{3});
        return error.what();
    }
    return "none";
}

base::Doorbell& of_ended_job() {
    static base::Doorbell bell;
    base::abort(bell, {.rank = 3, .text = "rank 3 died", .code = ErrorCode::rank_died});
    return bell;
}

/// Tries to lock, in a job that has ended, while a thread stays "in MPI" until a byte comes.
[[noreturn]] void try_beside_a_stuck_thread(int released, bool may_end) {
    base::Mutex calls;
    std::atomic<bool> locked{false};
    std::thread stuck([&] {
        const base::Lock lock(calls);
        locked = true;
        char byte = 0;
        if (read(released, &byte, 1) != 1) _exit(9);
    });
    while (!locked) std::this_thread::yield();
    const bool locks = lock_or_end(calls, of_ended_job(), {}, may_end);
    if (!locks && may_end) sleep(20);  // the end is near
    _exit(locks ? 7 : 8);
}

/// The exit code: 7 for a process that goes on with the lock, 8 for one that goes on without it.
/// And what has been logged. `releases`: the thread leaves MPI once something has been logged.
std::pair<int, std::string> end_beside_a_stuck_thread(bool releases, bool may_end) {
    std::array<int, 2> output{}, release{};
    REQUIRE(pipe(output.data()) == 0);
    REQUIRE(pipe(release.data()) == 0);
    const auto child = fork();
    if (child == 0) {
        close(release[1]);
        dup2(output[1], STDERR_FILENO);
        close(output[1]);
        try_beside_a_stuck_thread(release[0], may_end);
    }
    close(output[1]);
    close(release[0]);
    std::string said;
    for (char next = 0; read(output[0], &next, 1) == 1;) {
        said += next;
        if (releases && next == '\n') CHECK(write(release[1], "x", 1) == 1);
        releases = releases && next != '\n';
    }
    int status = -1;
    waitpid(child, &status, 0);
    close(output[0]);
    close(release[1]);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

}  // namespace

TEST_CASE("an abort notice says which rank ended the job, with which error, and why") {
    AbortNotice notice{.culprit = 2, .code = static_cast<std::int32_t>(ErrorCode::departed)};
    notice.text = {'w', 'h', 'y'};
    const auto arrived = AbortNotice::from(message_of(notice));
    CHECK(arrived.cause().rank == 2);
    CHECK(arrived.cause().code == ErrorCode::departed);
    CHECK(arrived.cause().text == "why");
}

TEST_CASE("an abort notice of another length or of an unknown error code is refused") {
    auto message = message_of({});
    message.bytes.pop_back();
    CHECK(refusal_of(message).find("rank 3 sent a notice of 2") != std::string::npos);
    const auto last = static_cast<std::int32_t>(last_of(ErrorCode{}));
    CHECK(refusal_of(message_of({.code = last})) == "none");
    for (const auto code : {-1, last + 1}) {
        CAPTURE(code);
        CHECK(refusal_of(message_of({.code = code}))
                  .find("unknown error code " + std::to_string(code)) != std::string::npos);
    }
}

TEST_CASE("a process that MPI does not let go after a death says so soon, and ends") {
    const std::string words = "rank 3 died; a call of MPI has not returned since";
    const auto [ended, last_words] = end_beside_a_stuck_thread(false, true);
    CHECK(ended == 1);
    CHECK(last_words.find(words) != std::string::npos);
    const auto [went_on, warning] = end_beside_a_stuck_thread(true, true);
    CHECK(went_on == 7);
    CHECK(warning.find(words) != std::string::npos);
    CHECK(end_beside_a_stuck_thread(false, false) == std::pair(8, std::string()));
    base::Mutex calls;
    REQUIRE(lock_or_end(calls, of_ended_job(), {}, true));
    calls.unlock();
}

}  // namespace guozhuang::wire::mpi
