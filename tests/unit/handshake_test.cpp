// Ranks that are configured differently, and what they agree on.
#include "runtime/handshake.hpp"

#include <thread>

#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "wire/inproc/inproc_transport.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using namespace std::chrono_literals;

namespace {

/// Runs the handshake of two ranks, and returns the configuration of each after it.
std::pair<base::Config, base::Config> agreed(const base::Config& of_rank0,
                                             const base::Config& of_rank1) {
    wire::InprocHub hub(2);
    const auto transport0 = hub.transport(0), transport1 = hub.transport(1);
    base::Config first, second;
    std::thread other([&] { second = run_handshake(*transport1, of_rank1, "", {}); });
    first = run_handshake(*transport0, of_rank0, "", {});
    other.join();
    return {first, second};
}

}  // namespace

TEST_CASE("what rank 0 decides holds for all, and it says so") {
    const LogCapture log;
    base::Config of_rank0, of_rank1;
    of_rank0.fusion_bytes = 4096;
    of_rank0.segment_bytes = 8192;
    of_rank0.algorithm = Algorithm::direct;
    of_rank0.reproducible = true;
    of_rank0.log_level = LogLevel::info;
    of_rank0.limits.stall_warn = 0ms;
    of_rank0.limits.stall_error = 1500ms;
    of_rank1.log_level = LogLevel::error;
    of_rank1.limits.stall_error = 7ms;
    const auto [first, second] = agreed(of_rank0, of_rank1);
    for (const auto& row : base::config_table()) {
        INFO(row.name);
        CHECK(row.print(first) == row.print(of_rank0));
        CHECK(row.print(second) ==
              row.print(row.scope == base::ConfigScope::rank0_wins ? of_rank0 : of_rank1));
    }
    CHECK(log.with("GUOZHUANG_STALL_ERROR_S differs: 0.007 on rank 1; 1.5 on rank 0; rank 0's "
                   "holds for all")
              .size() == 1);
    CHECK(log.with("LOG_LEVEL").empty());
}
