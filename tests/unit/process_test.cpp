// A process and its signals.
#include "base/process.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "support/runner/catch.hpp"

namespace guozhuang::base {
namespace {

/// The status of a child that writes to a closed pipe: with exit code 7 if that fails with EPIPE.
int status_after_broken_pipe(void (*prepare)()) {
    const auto child = fork();
    if (child == 0) {
        std::signal(SIGPIPE, SIG_DFL);
        prepare();
        std::array<int, 2> ends{};
        _exit(pipe(ends.data()) == 0 && close(ends[0]) == 0 && write(ends[1], "x", 1) == -1 &&
                      errno == EPIPE
                  ? 7
                  : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

volatile std::sig_atomic_t caught = 0;

}  // namespace

TEST_CASE("a process can survive a broken pipe, and its own handler stays") {
    CHECK(describe_exit(status_after_broken_pipe([] {})).find("signal 13") != std::string::npos);
    CHECK(WEXITSTATUS(status_after_broken_pipe(survive_broken_pipes)) == 7);
    const auto status = status_after_broken_pipe([] {
        std::signal(SIGPIPE, [](int) { caught = 1; });
        survive_broken_pipes();
        std::raise(SIGPIPE);
        if (caught != 1) _exit(2);
    });
    CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("programs that a process starts do not survive a broken pipe with it") {
    const auto status = status_after_broken_pipe([] {
        survive_broken_pipes();
        execl("/bin/sh", "sh", "-c", "kill -PIPE $$; exit 7", nullptr);
        _exit(2);
    });
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGPIPE);
}

}  // namespace guozhuang::base
