// Nothing that a public header gives away refers into a temporary.
#include <guozhuang/guozhuang.hpp>
#include <type_traits>
#include <utility>

#include "support/runner/catch.hpp"

using namespace guozhuang;

namespace {

struct Sgd {
    void step() {}
};

/// Whether what it gives outlives the object that gives it.
template <class Given>
constexpr bool stands_alone = !std::is_reference_v<Given>;

static_assert(stands_alone<decltype(std::declval<DistributedSampler>().indices())>);
static_assert(stands_alone<decltype(std::declval<Error>().tensor())>);
static_assert(stands_alone<decltype(std::declval<Error>().operation())>);
static_assert(stands_alone<decltype(std::declval<RankDied>().ranks())>);
static_assert(stands_alone<decltype(std::declval<RankDied>().where())>);
static_assert(stands_alone<decltype(std::declval<Plan>().name())>);
static_assert(stands_alone<decltype(std::declval<GradientReducer>().name())>);
static_assert(stands_alone<decltype(std::declval<ConstTensorView>().view())>);
static_assert(stands_alone<decltype(std::declval<ProcessSet>().state())>);

template <class O>
concept GivesHook = requires(O&& optimizer) { std::forward<O>(optimizer).on_gradient(); };
template <class O>
concept GivesGuard = requires(O&& optimizer) { std::forward<O>(optimizer).no_sync(); };
static_assert(GivesHook<DistributedOptimizer<Sgd>&> && !GivesHook<DistributedOptimizer<Sgd>>);
static_assert(GivesGuard<DistributedOptimizer<Sgd>&> && !GivesGuard<DistributedOptimizer<Sgd>>);

}  // namespace

TEST_CASE("a loop over the indices of a temporary sampler sees all of them") {
    run_ranks(1, [](Session&) {
        std::size_t sum = 0;
        for (const auto i : DistributedSampler(1000).indices()) sum += i;
        CHECK(sum == 1000 * 999 / 2);
    });
}
