// Who gets samples of which length.
#include <algorithm>
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

using Batch = std::vector<std::size_t>;
/// The batches of each rank.
using Dealt = std::vector<std::vector<Batch>>;

Dealt dealt(int ranks, const std::vector<std::size_t>& lengths, const LengthSamplerOptions& options,
            std::uint64_t epoch = 0, std::size_t done = 0) {
    Dealt all(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Session& session) {
        LengthSampler sampler(lengths, options);
        if (epoch + done > 0) sampler.set_epoch(epoch, done);
        auto& own = all[static_cast<std::size_t>(session.rank())];
        for (std::size_t step = 0; step < sampler.steps(); ++step) {
            const auto batch = sampler.batch(step);
            own.emplace_back(batch.begin(), batch.end());
        }
    });
    return all;
}

/// Lengths as those of texts: most are short, a few are long.
std::vector<std::size_t> text_lengths(std::size_t samples) {
    std::mt19937_64 random(1);
    std::vector<std::size_t> lengths(samples);
    for (auto& length : lengths) {
        const double uniform = static_cast<double>(random() % 100000 + 1) / 100001;
        length = 10 + static_cast<std::size_t>(-60 * std::log(uniform));
    }
    return lengths;
}

std::map<std::size_t, int> times_of(const Dealt& all) {
    std::map<std::size_t, int> times;
    for (const auto& rank : all)
        for (const auto& batch : rank)
            for (const auto sample : batch) ++times[sample];
    return times;
}

bool are_alike(const Dealt& all) {
    const auto sizes = [](const std::vector<Batch>& batches) {
        std::vector<std::size_t> each;
        for (const auto& batch : batches) each.push_back(batch.size());
        return each;
    };
    return std::ranges::all_of(all, [&](const auto& rank) { return sizes(rank) == sizes(all[0]); });
}

/// How much longer the longest rank of a step takes than the mean, over all steps: what the others
/// wait.
double excess(const Dealt& all, const std::vector<std::size_t>& lengths) {
    double longest = 0, mean = 0;
    for (std::size_t step = 0; step < all[0].size(); ++step) {
        std::vector<double> totals;
        for (const auto& rank : all) {
            double total = 0;
            for (const auto sample : rank[step]) total += static_cast<double>(lengths[sample]);
            totals.push_back(total);
        }
        longest += *std::ranges::max_element(totals);
        mean +=
            std::accumulate(totals.begin(), totals.end(), 0.0) / static_cast<double>(all.size());
    }
    return longest / mean - 1;
}

/// The same batches dealt without regard to length.
Dealt dealt_at_random(int ranks, std::size_t samples, std::size_t batch) {
    Dealt all(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Session& session) {
        const DistributedSampler sampler(samples);
        auto& own = all[static_cast<std::size_t>(session.rank())];
        for (std::size_t at = 0; at < sampler.size(); at += batch)
            own.emplace_back(sampler.begin() + static_cast<std::ptrdiff_t>(at),
                             sampler.begin() +
                                 static_cast<std::ptrdiff_t>(std::min(at + batch, sampler.size())));
    });
    return all;
}

std::set<std::size_t> samples_of(const Dealt& all, std::size_t step) {
    std::set<std::size_t> samples;
    for (const auto& rank : all) samples.insert(rank[step].begin(), rank[step].end());
    return samples;
}

}  // namespace

TEST_CASE("every sample is dealt once, in as many batches of the same size on each rank") {
    for (const int ranks : {1, 2, 3, 5})
        for (const std::size_t samples : {0u, 1u, 7u, 60u, 101u})
            for (const std::size_t window : {0u, 32u})
                for (const auto tail : {Tail::pad, Tail::drop}) {
                    CAPTURE(ranks, samples, window, static_cast<int>(tail));
                    const auto all =
                        dealt(ranks, text_lengths(samples),
                              {.batch = 4, .window = window, .sampler = {.tail = tail}});
                    CHECK(are_alike(all));
                    const auto p = static_cast<std::size_t>(ranks);
                    const auto left = samples % p, times = times_of(all).size();
                    CHECK(times == samples - (tail == Tail::drop ? left : 0));
                    std::size_t dealt_out = 0;
                    for (const auto& [sample, count] : times_of(all))
                        dealt_out += static_cast<std::size_t>(count);
                    CHECK(dealt_out == times + (tail == Tail::pad && left > 0 ? p - left : 0));
                }
}

TEST_CASE("the ranks' batches of a step have about the same total length") {
    const auto lengths = text_lengths(8000);
    for (const int ranks : {2, 4, 8}) {
        CAPTURE(ranks);
        const auto random = excess(dealt_at_random(ranks, lengths.size(), 16), lengths);
        const auto balanced = excess(dealt(ranks, lengths, {.batch = 16}), lengths);
        CAPTURE(random, balanced);
        CHECK(balanced < random / 20);
    }
    // With one sample a rank, only a window can make them equal.
    const auto random = excess(dealt_at_random(4, lengths.size(), 1), lengths);
    const auto windows = excess(dealt(4, lengths, {.batch = 1, .window = 400}), lengths);
    CAPTURE(random, windows);
    CHECK(random > 0.5);
    CHECK(windows < random / 20);
}

TEST_CASE("without windows a step has the samples that it has with a DistributedSampler") {
    const auto lengths = text_lengths(120);
    const auto plain = dealt_at_random(3, lengths.size(), 5);
    const auto balanced = dealt(3, lengths, {.batch = 5});
    REQUIRE(balanced[0].size() == plain[0].size());
    for (std::size_t step = 0; step < plain[0].size(); ++step)
        CHECK(samples_of(balanced, step) == samples_of(plain, step));
}

TEST_CASE("the division follows from seed and epoch") {
    const auto lengths = text_lengths(100);
    const auto of = [&](std::uint64_t seed, std::uint64_t epoch) {
        return dealt(2, lengths, {.batch = 3, .window = 30, .sampler = {.seed = seed}}, epoch);
    };
    CHECK(of(1, 0) == of(1, 0));
    CHECK(of(1, 3) == of(1, 3));
    CHECK(of(1, 0) != of(2, 0));
    CHECK(of(1, 0) != of(1, 1));
    const auto sorted =
        dealt(2, {5, 1, 4, 2, 3, 6}, {.batch = 1, .window = 6, .sampler = {.shuffle = false}});
    CHECK(sorted == Dealt{{{3}, {2}, {5}}, {{1}, {4}, {0}}});
}

TEST_CASE("fewer ranks deal what is left of an epoch") {
    const auto lengths = text_lengths(101);
    const LengthSamplerOptions options{.batch = 3, .window = 24, .bucket = 12};
    auto times = times_of({});
    for (const auto& rank : dealt(4, lengths, options, 5))
        for (std::size_t step = 0; step < 4; ++step)
            for (const auto sample : rank[step]) ++times[sample];
    CHECK(times.size() == 48);
    const auto rest = dealt(2, lengths, options, 5, 48);
    CHECK(are_alike(rest));
    for (const auto& [sample, count] : times_of(rest)) times[sample] += count;
    CHECK(times.size() == 101);  // 53 are left, and one is repeated
    CHECK(std::ranges::count_if(times, [](const auto& each) { return each.second == 2; }) == 1);
}

TEST_CASE("options of a LengthSampler out of range are refused") {
    run_ranks(1, [](Session&) {
        const auto refusal = [](const auto& act) {
            const auto error = error_of(act);
            return std::string(error && error->code() == ErrorCode::invalid_argument ? error->what()
                                                                                     : "none");
        };
        CHECK(refusal([] { LengthSampler({1}, {.batch = 0}); }) ==
              "LengthSampler: batch is 0; it must be 1 at least");
        CHECK(refusal([] {
                  LengthSampler({1}, {.sampler = {.tail = Tail::uneven}});
              }).find("LengthSampler: tail is Tail::uneven") == 0);
        LengthSampler sampler({1, 2, 3}, {.batch = 2});
        CHECK(sampler.steps() == 2);
        CHECK(sampler.batch(1).size() == 1);
        CHECK(refusal([&] { sampler.batch(2); }) ==
              "LengthSampler: there is no step 2; there are 2");
        CHECK(refusal([&] { sampler.set_epoch(0, 4); }) ==
              "LengthSampler: 4 samples are done, of 3 that there are");
    });
}
