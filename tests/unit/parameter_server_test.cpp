#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("a parameter server sums in tree order", "[parameter_server]") {
    CHECK(failures_of<Plain<std::int64_t>>(one_server<ThreadWire>, tree_sum<Plain<std::int64_t>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<HalfLike>(one_server<ThreadWire>, tree_sum<HalfLike>) ==
          std::vector<std::string>{});
}

TEST_CASE("everything passes through the server", "[parameter_server]") {
    const std::size_t bytes = 4099 * sizeof(float);
    for (const int ranks : group_sizes) {
        const auto outcome = run_allreduce<Plain<float>>(
            one_server<ThreadWire>, inputs_of<Plain<float>>(ranks, {4099}), 1, 1 << 20);
        const auto workers = static_cast<std::size_t>(ranks - 1);
        CHECK(outcome.wires[0].bytes() == workers * bytes);
        CHECK(outcome.wires[0].messages() == workers);
        for (std::size_t rank = 1; rank <= workers; ++rank)
            CHECK(outcome.wires[rank].bytes() == bytes);
    }
}

}  // namespace
