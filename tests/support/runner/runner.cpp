#define CATCH_CONFIG_RUNNER
#include "support/runner/runner.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/watchdog.hpp"

#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>

namespace guozhuang::test {
namespace {

#if GUOZHUANG_CATCH_VERSION >= 3
namespace cli = Catch::Clara;
using ListenerBase = Catch::EventListenerBase;
#else
namespace cli = Catch::clara;
using ListenerBase = Catch::TestEventListenerBase;
#endif

/// The process's one run. Catch makes its listeners itself, so what they need is found from here.
struct Run {
    Catch::Session catch_session;
    int case_timeout_s = 60;
    std::unique_ptr<Watchdog> watchdog;
    int rank = 0;
    std::ostringstream unsaid;  ///< what Catch writes on ranks other than 0
};

Run& run() {
    static Run instance;
    return instance;
}

/// Starts the watchdog for every case, and lets a rank other than 0 speak when its case failed: at
/// once, since the others may now hang.
class CaseListener : public ListenerBase {
public:
    using ListenerBase::ListenerBase;

    void testCaseStarting(const Catch::TestCaseInfo& info) override {
        ListenerBase::testCaseStarting(info);
        run().watchdog->start(info.name);
    }

    void testCaseEnded(const Catch::TestCaseStats& stats) override {
        run().watchdog->finish();
        if (run().rank != 0 && stats.totals.assertions.failed > 0)
            std::cerr << "rank " << run().rank << ":\n" << run().unsaid.str() << std::flush;
        run().unsaid.str({});
        ListenerBase::testCaseEnded(stats);
    }
};

}  // namespace

CATCH_REGISTER_LISTENER(CaseListener)

int read_command_line(int argc, char** argv) {
    auto& session = run().catch_session;
    session.cli(session.cli() | cli::Opt(run().case_timeout_s, "seconds")["--case-timeout"](
                                    "end the process when a test case takes longer"));
    const int error = session.applyCommandLine(argc, argv);
    run().watchdog = std::make_unique<Watchdog>(std::chrono::seconds(run().case_timeout_s));
    return error;
}

unsigned chosen_seed() {
    const unsigned given = run().catch_session.configData().rngSeed;
    if (given != 0) return given;
    const unsigned drawn = std::random_device{}();
    return drawn != 0 ? drawn : 1;
}

void become_rank(int rank, unsigned seed) {
    run().rank = rank;
    run().watchdog->name_process("rank " + std::to_string(rank));
    run().catch_session.configData().rngSeed = seed;
}

int run_cases() {
    if (run().rank == 0) return run().catch_session.run();
    std::streambuf* const standard_output = std::cout.rdbuf(run().unsaid.rdbuf());
    const int failures = run().catch_session.run();
    std::cout.rdbuf(standard_output);
    return failures;
}

Guarded::Guarded(const char* what) {
    run().watchdog->start(what);
}

Guarded::~Guarded() {
    run().watchdog->finish();
}

}  // namespace guozhuang::test
