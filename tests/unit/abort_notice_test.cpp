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

/// Its thread stays in a call of MPI, as it were, for so long.
class Stuck {
public:
    explicit Stuck(std::chrono::milliseconds time) {
        std::atomic<bool> locked{false};
        thread_ = std::thread([this, time, &locked] {
            const base::Lock lock(calls);
            locked = true;
            std::this_thread::sleep_for(time);
        });
        while (!locked) std::this_thread::yield();
    }
    ~Stuck() { thread_.join(); }

    base::Mutex calls;

private:
    std::thread thread_;
};

/// Tries to lock while a thread is in MPI for so long, in a job that has ended. Returns the exit
/// code, 7 for a process that goes on with the lock, 8 for one that goes on without it; and what
/// has been logged.
std::pair<int, std::string> end_of(std::chrono::milliseconds time, bool may_end) {
    std::array<int, 2> ends{};
    REQUIRE(pipe(ends.data()) == 0);
    const auto child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        Stuck stuck(time);
        base::Doorbell bell;
        base::abort(bell, {.rank = 3, .text = "rank 3 died", .code = ErrorCode::rank_died});
        if (lock_or_end(stuck.calls, bell, {}, may_end)) _exit(7);
        if (may_end) sleep(20);  // the end is near
        _exit(8);
    }
    close(ends[1]);
    std::string said;
    for (char next = 0; read(ends[0], &next, 1) == 1;) said += next;
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
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
    using namespace std::chrono_literals;
    const std::string words = "rank 3 died; a call of MPI has not returned since";
    const auto [ended, last_words] = end_of(30s, true);
    CHECK(ended == 1);
    CHECK(last_words.find(words) != std::string::npos);
    const auto [went_on, warning] = end_of(1s, true);
    CHECK(went_on == 7);
    CHECK(warning.find(words) != std::string::npos);
    CHECK(end_of(0s, true) == std::pair(7, std::string()));
    CHECK(end_of(30s, false) == std::pair(8, std::string()));
}

}  // namespace guozhuang::wire::mpi
