// Who gets which samples.
#include <algorithm>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "support/runner/catch.hpp"

using namespace guozhuang;

namespace {

using Shares = std::vector<std::vector<std::size_t>>;

/// Every rank's samples in some epoch.
Shares shares(int ranks, std::size_t samples, SamplerOptions options = {},
              std::uint64_t epoch = 0) {
    Shares all(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Session& session) {
        DistributedSampler sampler(samples, options);
        if (epoch > 0) sampler.set_epoch(epoch);
        auto& own = all[static_cast<std::size_t>(session.rank())];
        own.assign(sampler.begin(), sampler.end());
        if (own.size() != sampler.size()) own.clear();
    });
    return all;
}

/// How often each sample was given away.
std::map<std::size_t, int> counts(const Shares& all) {
    std::map<std::size_t, int> times;
    for (const auto& share : all)
        for (const auto sample : share) ++times[sample];
    return times;
}

std::vector<std::size_t> sizes(const Shares& all) {
    std::vector<std::size_t> each;
    for (const auto& share : all) each.push_back(share.size());
    return each;
}

/// The first `batch` samples of all ranks.
std::set<std::size_t> global_batch(const Shares& all, std::size_t batch) {
    std::set<std::size_t> samples;
    for (const auto& share : all)
        samples.insert(share.begin(), share.begin() + static_cast<std::ptrdiff_t>(batch));
    return samples;
}

}  // namespace

TEST_CASE("the shares are disjoint and together the data set") {
    for (const int ranks : {1, 2, 3, 5})
        for (const std::size_t samples : {0u, 1u, 2u, 4u, 7u, 60u, 101u}) {
            INFO(ranks << " ranks, " << samples << " samples");
            const auto p = static_cast<std::size_t>(ranks);
            const auto uneven = shares(ranks, samples, {.tail = Tail::uneven});
            CHECK(counts(uneven).size() == samples);
            CHECK(std::ranges::all_of(counts(uneven),
                                      [](const auto& entry) { return entry.second == 1; }));
            for (std::size_t rank = 0; rank < p; ++rank)
                CHECK(uneven[rank].size() == samples / p + (rank < samples % p ? 1 : 0));

            const auto dropped = shares(ranks, samples, {.tail = Tail::drop});
            CHECK(sizes(dropped) == std::vector<std::size_t>(p, samples / p));
            CHECK(counts(dropped).size() == samples / p * p);

            const auto padded = shares(ranks, samples, {.tail = Tail::pad});
            CHECK(sizes(padded) == std::vector<std::size_t>(p, (samples + p - 1) / p));
            CHECK(counts(padded).size() == samples);
        }
}

TEST_CASE("padding repeats no sample more often than it must") {
    const auto times = counts(shares(5, 2));  // fewer samples than ranks
    CHECK(std::ranges::all_of(
        times, [](const auto& entry) { return entry.second == 2 || entry.second == 3; }));
}

TEST_CASE("the order follows from seed and epoch") {
    const auto first = shares(2, 100, {.seed = 7});
    CHECK(shares(2, 100, {.seed = 7}) == first);
    CHECK(shares(2, 100, {.seed = 8}) != first);
    CHECK(shares(2, 100, {.seed = 7}, 1) != first);
    CHECK(shares(2, 100, {.seed = 7}, 1) == shares(2, 100, {.seed = 7}, 1));
    CHECK(shares(2, 100, {.seed = 7}, 1) != shares(2, 100, {.seed = 8}, 0));
    run_ranks(1, [&](Session&) {
        DistributedSampler sampler(50);
        const auto epoch0 = sampler.indices();
        sampler.set_epoch(3);
        CHECK(sampler.indices() != epoch0);
        sampler.set_epoch(0);
        CHECK(sampler.indices() == epoch0);
    });
}

TEST_CASE("without shuffling the samples are dealt in order") {
    CHECK(shares(3, 7, {.shuffle = false, .tail = Tail::uneven}) ==
          Shares{{0, 3, 6}, {1, 4}, {2, 5}});
    CHECK(shares(3, 7, {.shuffle = false}) == Shares{{0, 3, 6}, {1, 4, 0}, {2, 5, 1}});
    CHECK(shares(3, 7, {.shuffle = false, .tail = Tail::drop}) == Shares{{0, 3}, {1, 4}, {2, 5}});
    CHECK(shares(2, 4, {.shuffle = false}, 5) == Shares{{0, 2}, {1, 3}});
}

TEST_CASE("a batch of b on p ranks holds the samples of a batch of b p on one") {
    const auto alone = shares(1, 120, {.seed = 3}, 2);
    for (const int ranks : {2, 3, 4})
        for (const std::size_t batch : {1u, 5u, 20u})
            CHECK(global_batch(shares(ranks, 120, {.seed = 3}, 2), batch) ==
                  global_batch(alone, batch * static_cast<std::size_t>(ranks)));
}

TEST_CASE("every order is about as likely as another") {
    std::map<std::vector<std::size_t>, int> times;
    run_ranks(1, [&](Session&) {
        DistributedSampler sampler(3);
        for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) {
            sampler.set_epoch(epoch);
            ++times[sampler.indices()];
        }
    });
    CHECK(times.size() == 6);
    CHECK(std::ranges::all_of(
        times, [](const auto& entry) { return entry.second > 850 && entry.second < 1150; }));
}

TEST_CASE("fewer ranks share what is left of an epoch, and no sample comes twice") {
    const std::size_t samples = 101, batch = 5, steps = 3;
    for (const auto tail : {Tail::uneven, Tail::pad, Tail::drop}) {
        SamplerOptions options{.seed = 3, .tail = tail};
        auto used = counts({});
        for (const auto& share : shares(4, samples, options, 7))
            for (std::size_t i = 0; i < steps * batch; ++i) ++used[share[i]];
        std::mutex mutex;
        run_ranks(3, [&](Session&) {
            DistributedSampler sampler(samples, options);
            sampler.set_epoch(7, 4 * steps * batch);
            const std::lock_guard lock(mutex);
            for (const auto sample : sampler) ++used[sample];
        });
        const auto left = samples - 4 * steps * batch, rest = left % 3;  // 41 samples, and 2
        const auto once = std::ranges::count_if(used, [](auto& each) { return each.second == 1; });
        const auto twice = std::ranges::count_if(used, [](auto& each) { return each.second == 2; });
        CHECK(twice == (tail == Tail::pad ? static_cast<std::ptrdiff_t>(3 - rest) : 0));
        CHECK(static_cast<std::size_t>(once + twice) == samples - (tail == Tail::drop ? rest : 0));
    }
    run_ranks(1, [](Session&) {
        DistributedSampler sampler(10);
        sampler.set_epoch(0, 10);
        CHECK(sampler.size() == 0);
        CHECK_THROWS_WITH(sampler.set_epoch(0, 11),
                          "set_epoch: 11 samples are done, of 10 that there are");
    });
}
