// Averages of values that arrive while the ranks go on.
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <optional>
#include <random>
#include <thread>

#include "support/cases/training_parts.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Makes a step that takes a random time, of `most_us` at most.
void random_step(Weights& weights, Session& session, int step, std::mt19937& random,
                 unsigned most_us) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (most_us + 1)));
    weights.drift(session.rank(), step);
}

/// The mean over the ranks of where they would be without averages: no average changes it.
std::vector<double> mean_of_drifts(const std::vector<int>& steps) {
    auto mean = Weights().flat();
    for (std::size_t i = 0; i < mean.size(); ++i)
        for (std::size_t rank = 0; rank < steps.size(); ++rank)
            for (int step = 0; step < steps[rank]; ++step)
                mean[i] +=
                    drift_of(static_cast<int>(rank), step, i) / static_cast<double>(steps.size());
    return mean;
}

/// With a bound of 1, every average is that of the step before.
void averages_one_step_late(Session& session, Report& report) {
    Weights own;
    AsyncAverager averager(own.parameters(), {.max_staleness = 1});
    std::vector<std::vector<double>> all(static_cast<std::size_t>(session.size()), own.flat());
    std::vector<double> correction(all[0].size());
    for (int step = 0; step < 5; ++step) {
        own.drift(session.rank(), step);
        report.expect(averager.step() == (step > 0), "every step but the first adds an average");
        const auto before = all;  // when the last average began
        for (std::size_t rank = 0; rank < all.size(); ++rank)
            for (std::size_t i = 0; i < all[rank].size(); ++i) {
                double mean = 0;
                for (const auto& values : before)
                    mean += values[i] / static_cast<double>(all.size());
                all[rank][i] += drift_of(static_cast<int>(rank), step, i);
                if (step > 0) all[rank][i] += mean - before[rank][i];
            }
        report.expect(are_close(own.flat(), all[static_cast<std::size_t>(session.rank())]),
                      text_of("values after step ", step));
    }
    report.expect_equal(averager.stalest(), 1, "steps between beginning and arrival");
}

}  // namespace

TEST_CASE("an average that arrives late is added to what the rank has become") {
    for (const int ranks : {1, 2, 3, 4}) CHECK(problems_among(ranks, averages_one_step_late) == "");
}

TEST_CASE("ranks with random delays and different numbers of steps end with the same values") {
    for (const int ranks : {1, 2, 3, 4})
        for (const int bound : {1, 2, 5, 100}) {
            INFO(ranks << " ranks, at most " << bound << " steps late");
            CHECK(problems_among(ranks, [&](Session& session, Report& report) {
                      std::vector<int> steps;
                      for (int rank = 0; rank < session.size(); ++rank)
                          steps.push_back(10 + 7 * ((rank + 1) % 3));
                      std::mt19937 random(static_cast<unsigned>(session.rank() + 10 * bound));
                      Weights weights;
                      AsyncAverager averager(weights.parameters(), {.max_staleness = bound});
                      std::uint64_t added = 0;
                      for (int step = 0; step < steps[static_cast<std::size_t>(session.rank())];
                           ++step) {
                          random_step(weights, session, step, random,
                                      200 * (static_cast<unsigned>(session.rank()) + 1));
                          if (averager.step()) ++added;
                          report.expect(averager.averages() == added, "the averages added");
                          report.expect(averager.stalest() <= bound, "staleness");
                      }
                      averager.synchronize();
                      report.expect(averager.stalest() <= bound, "staleness at the end");
                      report.same_everywhere("values", weights.bytes());
                      report.same_everywhere("averages", text_of(averager.averages()));
                      report.expect(are_close(weights.flat(), mean_of_drifts(steps)), "the mean");
                  }) == "");
        }
}

TEST_CASE("training goes on after synchronize(), and a rank may make no step at all") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              Weights weights;
              AsyncAverager averager(weights.parameters());
              for (int round = 0; round < 3; ++round) {
                  for (int step = 0; step < 5 * session.rank(); ++step) {
                      weights.drift(session.rank(), step);
                      averager.step();
                  }
                  averager.synchronize();
                  report.same_everywhere("values", weights.bytes());
                  if (round == 0)
                      report.expect(are_close(weights.flat(), mean_of_drifts({0, 5, 10})),
                                    "the mean");
              }
          }) == "");
}

TEST_CASE("a slow rank makes the others late, never staler than the bound") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Weights weights;
              AsyncAverager averager(weights.parameters(), {.max_staleness = 3});
              // The slow rank makes no step until the other has made as many as it may.
              int word = 0;
              if (session.rank() == 1) recv(word, 0);
              for (int step = 0; step < 4; ++step) {
                  weights.drift(session.rank(), step);
                  if (session.rank() == 0 && step == 3) send_async(word, 1).wait();
                  report.expect(!averager.step() || session.rank() == 1 || step == 3,
                                "nothing arrives before the slow rank has begun");
              }
              averager.synchronize();
              if (session.rank() == 0)
                  report.expect_equal(averager.stalest(), 3, "the stalest average");
              report.expect(session.rank() == 0 || averager.stalest() <= 3, "the slow rank's");
              report.same_everywhere("values", weights.bytes());
          }) == "");
}

TEST_CASE("a step waits for an average at the bound") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Weights weights;
              AsyncAverager averager(weights.parameters(), {.max_staleness = 2});
              if (session.rank() == 0) {
                  for (int step = 0; step < 3; ++step) averager.step();
                  report.expect_equal(averager.late_steps(), std::uint64_t{1}, "late steps");
              } else {
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                  averager.step();
                  report.expect_equal(averager.late_steps(), std::uint64_t{0}, "late steps");
              }
              averager.synchronize();
          }) == "");
}

TEST_CASE("an averager that is gone while its average is on its way has still contributed") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              auto weights = std::make_optional<Weights>();
              weights->drift(session.rank(), 1);
              std::optional<AsyncAverager> averager(std::in_place, weights->parameters(),
                                                    AsyncAveragerOptions{.max_staleness = 1});
              int word = 0;
              if (session.rank() == 0) {
                  averager->step();
                  averager.reset();
                  for (auto& value : weights->a) value = 1000;
                  weights.reset();
                  send(word, 1);
                  recv(word, 1);
                  session.leave("out of the loop");
                  return;
              }
              recv(word, 0);
              averager->step();
              averager->step();
              auto expected = Weights().flat();
              for (std::size_t i = 0; i < expected.size(); ++i)
                  expected[i] += (drift_of(0, 1, i) + drift_of(1, 1, i)) / 2;
              report.expect(are_close(weights->flat(), expected), "the average with rank 0");
              send(word, 0);
              for (const bool at_end : {false, true}) {
                  const auto text = error_text(
                      [&] { at_end ? averager->synchronize() : (void)averager->step(); });
                  report.expect(text.starts_with("departed") &&
                                    text.find("rank 0") != std::string::npos &&
                                    text.find("out of the loop") != std::string::npos,
                                text);
                  if (!at_end) averager->step();
              }
          }) == "");
}

TEST_CASE("averages go on without a rank that has joined") {
    std::vector<std::string> values(3);
    CHECK(problems_among(3, [&](Session& session, Report& report) {
              Weights weights;
              AsyncAverager averager(weights.parameters(), {.max_staleness = 2});
              for (int step = 0; step < 4 * (1 + session.rank()); ++step) {
                  weights.drift(session.rank(), step);
                  averager.step();
              }
              if (session.rank() > 0) averager.synchronize();
              values[static_cast<std::size_t>(session.rank())] = weights.bytes();
              join();
              averager.synchronize();
              report.same_everywhere("values after the join", weights.bytes());
          }) == "");
    CHECK(values[1] == values[2]);
}

TEST_CASE("options and values that AsyncAverager cannot use") {
    run_ranks(1, [](Session&) {
        Weights weights;
        CHECK_THROWS_WITH(AsyncAverager(weights.parameters(), {.name = "x", .max_staleness = 0}),
                          "AsyncAverager 'x': max_staleness is 0; it must be 1 at least");
        for (const auto& [parameters, problem] : unusable_parameters())
            CHECK_THROWS_WITH(AsyncAverager(parameters), "AsyncAverager: " + problem);
    });
}
