// The watchdog of the tests: it ends what hangs, and not what is slow because the machine is busy.
#include "support/runner/watchdog.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "support/runner/catch.hpp"

using namespace guozhuang::test;

namespace {

/// The exit code of a process whose test takes two seconds, under a watchdog with a limit of one.
int exit_code_at(double (*share)()) {
    const auto child = fork();
    if (child == 0) {
        Watchdog watchdog(std::chrono::seconds(1), share);
        watchdog.start("sleeps for two seconds");
        sleep(2);
        watchdog.finish();
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE(
    "a watchdog ends what does not finish, and is patient where the machine has little time") {
    CHECK(exit_code_at([] { return 1.0; }) == 124);
    CHECK(exit_code_at([] { return 0.01; }) == 0);
    CHECK(share_of_a_core() > 0);
    CHECK(share_of_a_core() <= 1);
}
