#pragma once

/// One process's run of Catch: the command line, the seed, the output of ranks other than 0, and a
/// watchdog that ends a process whose test case takes too long (--case-timeout SECONDS), naming
/// rank and case. Main thread only.
namespace guozhuang::test {

/// Reads Catch's command line and ours; not 0 if the process should end with it.
int read_command_line(int argc, char** argv);

/// The seed from the command line, otherwise a fresh one.
unsigned chosen_seed();

/// Tells this process its rank. Ranks other than 0 print failed test cases, nothing else.
void become_rank(int rank, unsigned seed);

/// Runs the test cases; returns the number of failures, at most 255.
int run_cases();

/// Guards something that is not a test case: start-up, shut-down.
class Guarded {
public:
    explicit Guarded(const char* what);
    ~Guarded();
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
};

}  // namespace guozhuang::test
