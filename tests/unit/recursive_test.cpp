#include "collectives/recursive/doubling_allreduce.hpp"

#include "support/cases/allreduces.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("recursive doubling sums in tree order for any number of ranks", "[recursive]") {
    CHECK(failures_of<Plain<std::int64_t>>(recursive_doubling<ThreadWire>,
                                           tree_sum<Plain<std::int64_t>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<Plain<float>>(recursive_doubling<ThreadWire>, tree_sum<Plain<float>>) ==
          std::vector<std::string>{});
    CHECK(failures_of<HalfLike>(recursive_doubling<ThreadWire>, tree_sum<HalfLike>) ==
          std::vector<std::string>{});
}

TEST_CASE("whoever receives is served, by everyone's count", "[recursive]") {
    for (int size = 1; size <= 70; ++size) {
        for (int distance = 1; distance < size; distance *= 2) {
            std::vector<int> served(static_cast<std::size_t>(size), -1);
            for (int rank = 0; rank < size; ++rank) {
                const auto m = recursive::exchange_of(rank, distance, size);
                for (int peer = m.first_served; m.has_partner && peer < m.end_served;
                     peer += m.stride) {
                    REQUIRE(served[static_cast<std::size_t>(peer)] == -1);
                    served[static_cast<std::size_t>(peer)] = rank;
                }
            }
            for (int rank = 0; rank < size; ++rank) {
                const auto m = recursive::exchange_of(rank, distance, size);
                REQUIRE(served[static_cast<std::size_t>(rank)] == (m.has_partner ? m.source : -1));
            }
        }
    }
}

TEST_CASE("recursive doubling sends what its cost says", "[recursive]") {
    const std::size_t partials = 100 * sizeof(float);  // of 100 half-like elements
    for (const int ranks : {2, 4, 8, 16}) {
        const auto steps =
            static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks)) - 1);
        const auto outcome = run_allreduce<HalfLike>(recursive_doubling<ThreadWire>,
                                                     inputs_of<HalfLike>(ranks, {100}), 1, 0);
        for (const auto& wire : outcome.wires) {
            CHECK(wire.messages() == steps);
            CHECK(wire.bytes() == steps * partials);
        }
    }
    // Five ranks: the last one meets nobody until the end, then serves the four others.
    const auto outcome = run_allreduce<HalfLike>(recursive_doubling<ThreadWire>,
                                                 inputs_of<HalfLike>(5, {100}), 1, 0);
    CHECK(outcome.wires[0].messages() == 3);
    CHECK(outcome.wires[1].messages() == 2);
    CHECK(outcome.wires[4].messages() == 4);
}

}  // namespace
