#include "collectives/select.hpp"

#include "support/runner/catch.hpp"

namespace {

using guozhuang::Algorithm;
using namespace guozhuang::selection;

constexpr std::size_t kib = 1024, mib = 1024 * kib;

/// With the sizes that the cases go by.
constexpr Policy sized(Policy policy) {
    policy.small_bytes = 32 * kib;
    policy.segment_bytes = 256 * kib;
    return policy;
}

constexpr Algorithm allreduce(std::size_t tensor, std::size_t bundle, Policy policy = {}) {
    return choose({.tensor_bytes = tensor,
                   .bundle_bytes = bundle,
                   .ranks = 4,
                   .policy = sized(policy)})
        .algorithm;
}

TEST_CASE("allreduce is chosen by size, within the order class of the tensor", "[select]") {
    CHECK(allreduce(4, 4) == Algorithm::recursive_doubling);
    CHECK(allreduce(32 * kib, 32 * kib) == Algorithm::recursive_doubling);
    CHECK(allreduce(32 * kib + 1, 32 * kib + 1) == Algorithm::ring);
    CHECK(allreduce(64 * mib, 64 * mib) == Algorithm::ring);
    CHECK(allreduce(4, mib) == Algorithm::direct);
}

TEST_CASE("fusion never changes the order class", "[select]") {
    for (const std::size_t tensor : {std::size_t{4}, 32 * kib, 33 * kib, mib}) {
        for (const auto& policy :
             {Policy{}, Policy{.reproducible = true}, Policy{.hierarchy = true}}) {
            for (std::size_t bundle = tensor; bundle <= 64 * mib; bundle *= 2) {
                CHECK(order_class_of(allreduce(tensor, bundle, policy)) ==
                      order_class_of(tensor, sized(policy)));
            }
        }
    }
}

TEST_CASE("on several even hosts what would be a ring goes level by level", "[select]") {
    const auto hosts = sized({.hierarchy = true});
    CHECK(allreduce(64 * mib, 64 * mib, hosts) == Algorithm::hierarchical);
    CHECK(order_class_of(64 * mib, hosts) == OrderClass::hierarchy);
    CHECK(allreduce(4, 4, hosts) == Algorithm::recursive_doubling);
    CHECK(allreduce(4, mib, hosts) == Algorithm::direct);
    CHECK(allreduce(64 * mib, 64 * mib, {.reproducible = true, .hierarchy = true}) ==
          Algorithm::direct);
    CHECK(allreduce(64 * mib, 64 * mib, {.forced = Algorithm::ring, .hierarchy = true}) ==
          Algorithm::ring);
    CHECK(allreduce(64 * mib, 64 * mib, {.forced = Algorithm::direct, .hierarchy = true}) ==
          Algorithm::direct);
    CHECK(choose({.tensor_bytes = mib, .bundle_bytes = mib, .ranks = 4, .policy = hosts}) ==
          AlgorithmChoice{Algorithm::hierarchical, 128 * kib});
}

TEST_CASE("reproducible keeps to the tree", "[select]") {
    CHECK(allreduce(64 * mib, 64 * mib, {.reproducible = true}) == Algorithm::direct);
    CHECK(allreduce(4, 4, {.reproducible = true}) == Algorithm::recursive_doubling);
    CHECK(contradictory(Algorithm::ring, true));
    CHECK_FALSE(contradictory(Algorithm::direct, true));
}

TEST_CASE("a forced algorithm is taken", "[select]") {
    for (const auto& row : algorithms) {
        const auto forced = row.algorithm;
        if (!row.by_name || forced == Algorithm::automatic) continue;
        CHECK(allreduce(4, 4, {.forced = forced}) == forced);
        CHECK(allreduce(64 * mib, 64 * mib, {.forced = forced}) == forced);
    }
}

TEST_CASE("where memory is shared, everything is staged", "[select]") {
    const auto staging = sized({.staging = true});
    CHECK(allreduce(4, 4, staging) == Algorithm::staged);
    CHECK(allreduce(4, 64 * kib, staging) == Algorithm::staged);
    CHECK(allreduce(64 * mib, 64 * mib, staging) == Algorithm::staged);
    CHECK(order_class_of(64 * mib, staging) == OrderClass::tree);
    CHECK(allreduce(4, 4, {.forced = Algorithm::direct, .staging = true}) == Algorithm::staged);
    CHECK(allreduce(mib, mib, {.forced = Algorithm::ring, .staging = true}) == Algorithm::ring);
}

TEST_CASE("only algorithms that cut have segments, and direct exchange shorter ones on many ranks",
          "[select]") {
    const Policy policy{.small_bytes = 32 * kib, .segment_bytes = 128 * kib};
    CHECK(choose({.tensor_bytes = mib, .bundle_bytes = mib, .ranks = 16, .policy = policy}) ==
          AlgorithmChoice{Algorithm::ring, 128 * kib});
    CHECK(choose({.tensor_bytes = 4, .bundle_bytes = 4, .ranks = 16, .policy = policy}) ==
          AlgorithmChoice{Algorithm::recursive_doubling, 0});
    CHECK(choose({.tensor_bytes = 4, .bundle_bytes = mib, .ranks = 2, .policy = policy}) ==
          AlgorithmChoice{Algorithm::direct, 128 * kib});
    CHECK(choose({.tensor_bytes = 4, .bundle_bytes = mib, .ranks = 16, .policy = policy}) ==
          AlgorithmChoice{Algorithm::direct, 16 * kib});
    CHECK(direct_segment_bytes(1000, 128 * kib) == 8 * kib);
    CHECK(direct_segment_bytes(1000, 1 * kib) == 1 * kib);
}

}  // namespace
