// Averages in pairs.
#include <guozhuang/guozhuang.hpp>
#include <numeric>
#include <optional>

#include "support/cases/training_parts.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

using ByRank = std::vector<std::vector<double>>;

/// The values after each step, and the partners (-1: none), by step and rank.
struct History {
    std::vector<ByRank> values;
    std::vector<std::vector<int>> partners;
};

History history_of(int ranks, int steps, const GossipOptions& options) {
    const auto p = static_cast<std::size_t>(ranks);
    History all{
        std::vector<ByRank>(static_cast<std::size_t>(steps) + 1, ByRank(p)),
        std::vector<std::vector<int>>(static_cast<std::size_t>(steps), std::vector<int>(p))};
    run_ranks(ranks, [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        Weights weights;
        weights.drift(session.rank(), 3);
        Gossip gossip(weights.parameters(), options);
        all.values[0][rank] = weights.flat();
        for (std::size_t step = 0; step < all.partners.size(); ++step) {
            all.partners[step][rank] = gossip.step().value_or(-1);
            all.values[step + 1][rank] = weights.flat();
        }
    });
    return all;
}

std::vector<double> mean_of(const ByRank& values) {
    std::vector<double> mean(values[0].size());
    for (const auto& each : values)
        for (std::size_t i = 0; i < mean.size(); ++i)
            mean[i] += each[i] / static_cast<double>(values.size());
    return mean;
}

/// The squared distance of all ranks from their mean.
double spread_of(const ByRank& values) {
    const auto mean = mean_of(values);
    double sum = 0;
    for (const auto& each : values)
        for (std::size_t i = 0; i < mean.size(); ++i)
            sum += (each[i] - mean[i]) * (each[i] - mean[i]);
    return sum;
}

void check_partners(const std::vector<int>& partners) {
    const auto ranks = static_cast<int>(partners.size());
    CHECK(std::ranges::count(partners, -1) == ranks % 2);
    for (int rank = 0; rank < ranks; ++rank)
        if (const int other = partners[static_cast<std::size_t>(rank)]; other >= 0) {
            CHECK(other != rank);
            CHECK(partners[static_cast<std::size_t>(other)] == rank);
        }
}

}  // namespace

TEST_CASE("pairs hold the mean of both, the mean of all stays, and the spread shrinks") {
    for (const auto pairs : {GossipPairs::random, GossipPairs::ring})
        for (const int ranks : {1, 2, 3, 4, 7}) {
            INFO(ranks << " ranks");
            const int steps = 30;
            const auto history = history_of(ranks, steps, {.pairs = pairs, .seed = 5});
            for (std::size_t step = 0; step < steps; ++step) {
                const auto& partners = history.partners[step];
                check_partners(partners);
                const auto &before = history.values[step], &after = history.values[step + 1];
                for (std::size_t rank = 0; rank < before.size(); ++rank) {
                    const auto other = partners[rank];
                    const auto expected =
                        other < 0
                            ? before[rank]
                            : mean_of({before[rank], before[static_cast<std::size_t>(other)]});
                    CHECK(are_close(after[rank], expected));
                    if (other >= 0) CHECK(after[rank] == after[static_cast<std::size_t>(other)]);
                }
                CHECK(are_close(mean_of(after), mean_of(before)));
                CHECK(spread_of(after) <= spread_of(before) * (1 + 1e-9) + 1e-9);
            }
            CHECK(spread_of(history.values.back()) <= 0.01 * spread_of(history.values[0]));
        }
}

TEST_CASE("random pairs follow from the seed, and every pair comes; ring partners are neighbours") {
    const auto partners_of = [](const GossipOptions& options) {
        return history_of(5, 40, options).partners;
    };
    const auto random = partners_of({.seed = 1});
    CHECK(partners_of({.seed = 1}) == random);
    CHECK(partners_of({.seed = 2}) != random);
    std::vector<std::size_t> met(5);
    for (std::size_t rank = 0; rank < 5; ++rank)
        for (int other = -1; other < 5; ++other)
            met[rank] += std::ranges::any_of(
                random, [&](const auto& partners) { return partners[rank] == other; });
    CHECK(met == std::vector<std::size_t>(5, 5));  // four partners, and to sit out
    for (const auto& partners : partners_of({.pairs = GossipPairs::ring}))
        for (int rank = 0; rank < 5; ++rank)
            if (const int other = partners[static_cast<std::size_t>(rank)]; other >= 0)
                CHECK(((other - rank + 5) % 5 == 1 || (rank - other + 5) % 5 == 1));
}

TEST_CASE("gossip of a process set, and the mean at the end") {
    CHECK(problems_among(4, [](Session& session, Report& report) {
              const auto odd = ProcessSet::create({1, 3});
              Weights weights;
              weights.drift(session.rank(), 2);
              if (session.rank() % 2 == 1) {
                  Gossip gossip(weights.parameters(), {.process_set = odd});
                  report.expect(gossip.step() == 4 - session.rank(), "the other of the set");
              }
              LocalSgd(weights.parameters()).synchronize();
              auto expected = Weights().flat();
              for (std::size_t i = 0; i < expected.size(); ++i)
                  for (int rank = 0; rank < 4; ++rank) expected[i] += drift_of(rank, 2, i) / 4;
              report.expect(are_close(weights.flat(), expected), "the mean of all");
              report.same_everywhere("values", weights.bytes());
          }) == "");
}

TEST_CASE("ranks whose gossip differs are told so at the start") {
    for (const auto& [what, options] :
         {std::pair<std::string, GossipOptions>{"values of seed", {.seed = 7}},
          {"values of pairs", {.pairs = GossipPairs::ring}},
          {"values of tag", {.tag = 4}},
          {"dtypes and shapes", {}}})
        CHECK(problems_among(3, [&](Session& session, Report& report) {
                  Weights weights;
                  if (session.rank() == 2 && what == "dtypes and shapes") weights.a.resize(3);
                  const auto text = error_text([&] {
                      const Gossip gossip(weights.parameters(),
                                          session.rank() == 1 ? options : GossipOptions{});
                  });
                  report.expect(
                      text.starts_with("mismatch") && text.find(what) != std::string::npos, text);
              }) == "");
}

TEST_CASE("a partner that has left ends the step by name, with the values as they were") {
    const LogCapture log;
    CHECK(problems_among(2, [](Session& session, Report& report) {
              auto weights = std::make_optional<Weights>();
              std::optional<Gossip> gossip(std::in_place, weights->parameters());
              gossip->step();
              weights->drift(session.rank(), 1);
              if (session.rank() == 1) {
                  gossip.reset();
                  weights.reset();
                  session.leave("out of the loop");
                  return;
              }
              const auto before = weights->flat();
              const auto text = error_text([&] { gossip->step(); });
              report.expect(text.starts_with("departed") &&
                                text.find("rank 1") != std::string::npos &&
                                text.find("out of the loop") != std::string::npos,
                            text);
              report.expect(weights->flat() == before, "the values are as they were");
          }) == "");
}

TEST_CASE("a partner that has joined instead ends the job once the timeout is over") {
    const LogCapture log;
    std::vector<std::string> texts(2);
    const auto job = [&](Session& session) {
        Weights weights;
        Gossip gossip(weights.parameters(), {.timeout = std::chrono::milliseconds(200)});
        gossip.step();
        texts[static_cast<std::size_t>(session.rank())] =
            error_text([&] { session.rank() == 1 ? (void)join() : (void)gossip.step(); });
    };
    CHECK_THROWS_AS(run_ranks(2, job), Error);  // none can close its session
    for (const auto& text : texts)
        CHECK_THAT(text, Catch::Matchers::Matches("timeout: (send to|recv from) 1 has been waiting "
                                                  "for .* \\(its limit is 0.200 s\\).*"));
}

TEST_CASE("values that Gossip cannot use") {
    run_ranks(1, [](Session&) {
        for (const auto& [parameters, problem] : unusable_parameters())
            CHECK_THROWS_WITH(Gossip(parameters), "Gossip: " + problem);
    });
}
