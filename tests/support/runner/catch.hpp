#pragma once

/// Catch2, in whichever major version the system has. Write `Catch::Approx`. The macros are not
/// thread-safe: in ranks that are threads, collect results and check them after run_ranks(); under
/// mpirun, REQUIRE only what all ranks agree on.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define GUOZHUANG_CATCH_VERSION 3
#else
#include <catch2/catch.hpp>
#define GUOZHUANG_CATCH_VERSION 2
#endif

/// Leaves a test case that cannot run here, and says why. Use it directly in the body of a
/// TEST_CASE.
#if GUOZHUANG_CATCH_VERSION >= 3
#define GUOZHUANG_SKIP(reason) SKIP(reason)
#else
#define GUOZHUANG_SKIP(reason)                                                               \
    do {                                                                                     \
        WARN("skipped: " << reason); /* NOLINT(bugprone-macro-parentheses): "a" << b, too */ \
        return;                                                                              \
    } while (false)
#endif

namespace guozhuang::test {

/// The seed of random test data: the same on all ranks, printed with a failure, chosen with
/// --rng-seed. Never 0.
inline unsigned seed() {
    return Catch::rngSeed();
}

}  // namespace guozhuang::test
