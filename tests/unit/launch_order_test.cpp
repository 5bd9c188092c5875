// The order in which ranks launch bundles of process sets that overlap, walked at random.
#include "backends/device/launch_order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "support/runner/catch.hpp"

using guozhuang::backends::LaunchOrder;

namespace {

using Set = std::uint16_t;  // by its context
using Launches = std::vector<Set>;

constexpr int bundles_of_each_set = 5;

/// Ranks that go through the logs of their sets, each step of each set's at any time.
class Walk {
public:
    explicit Walk(std::vector<std::vector<std::size_t>> sets)
        : sets_(std::move(sets)), orders_(size()), launches_(size()) {
        for (auto& order : orders_)
            for (std::size_t set = 1; set < sets_.size(); ++set) order.open_set();
        for (std::size_t set = 0; set < sets_.size(); ++set)
            for (const auto rank : sets_[set]) walkers_.push_back({static_cast<Set>(set), rank});
        proposals_.resize(sets_.size());
    }

    /// Steps until nobody can.
    void run(std::mt19937& random) {
        for (bool moved = true; moved;) {
            std::ranges::shuffle(walkers_, random);
            moved = std::ranges::any_of(walkers_, [this](Walker& walker) { return step(walker); });
        }
    }
    bool is_done() const {
        return std::ranges::all_of(
            walkers_, [](const Walker& walker) { return walker.bundle == bundles_of_each_set; });
    }
    /// Whether any two ranks launched the bundles of their common sets in the same order.
    bool agrees() const {
        for (std::size_t one = 0; one < size(); ++one)
            for (std::size_t other = 0; other < one; ++other)
                if (common(one, other) != common(other, one)) return false;
        return true;
    }

private:
    /// A rank's position in a set's log: its bundle, and how far it has come with that.
    struct Walker {
        Set set;
        std::size_t rank;
        int bundle = 0;
        bool has_proposed = false, has_agreed = false;
    };

    std::size_t size() const { return sets_.front().size(); }

    bool step(Walker& walker) {
        if (walker.bundle == bundles_of_each_set) return false;
        auto& order = orders_[walker.rank];
        auto& proposals = proposals_[walker.set][walker.bundle];
        if (!walker.has_proposed) {
            proposals.push_back(order.propose(walker.set));
            return walker.has_proposed = true;
        }
        if (!walker.has_agreed) {
            if (proposals.size() < sets_[walker.set].size()) return false;
            order.agree(walker.set, std::ranges::max(proposals));
            return walker.has_agreed = true;
        }
        if (!order.is_next(walker.set)) return false;
        launches_[walker.rank].push_back(walker.set);
        order.end(walker.set);
        walker = {walker.set, walker.rank, walker.bundle + 1};
        return true;
    }
    Launches common(std::size_t rank, std::size_t other) const {
        Launches found;
        std::ranges::copy_if(launches_[rank], std::back_inserter(found),
                             [&](Set set) { return std::ranges::count(sets_[set], other) > 0; });
        return found;
    }

    const std::vector<std::vector<std::size_t>> sets_;  ///< ranks; the first is the world
    std::vector<LaunchOrder> orders_;                   ///< by rank
    std::vector<Launches> launches_;                    ///< by rank
    std::vector<Walker> walkers_;
    std::vector<std::map<int, std::vector<std::uint64_t>>> proposals_;  ///< by set and bundle
};

}  // namespace

TEST_CASE("ranks launch bundles of sets that overlap in one order, and none waits for ever") {
    std::mt19937 random(7);
    for (int again = 0; again < 2000; ++again) {
        INFO("walk " << again);
        Walk walk({{0, 1, 2, 3}, {0, 1}, {1, 2}, {2, 3}, {0, 3}, {0, 1, 2, 3}, {1, 3}});
        walk.run(random);
        REQUIRE(walk.is_done());
        REQUIRE(walk.agrees());
    }
}

TEST_CASE("the world's bundles are numbered as long as there is another set") {
    LaunchOrder order;
    CHECK_FALSE(order.concerns(LaunchOrder::world));
    CHECK(order.concerns(1));
    order.open_set();
    order.open_set();
    order.release_set();
    CHECK(order.concerns(LaunchOrder::world));
    order.release_set();
    CHECK_FALSE(order.concerns(LaunchOrder::world));
}
