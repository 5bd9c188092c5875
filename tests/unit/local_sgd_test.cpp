// Averages of values every few steps, worked out by hand and against DistributedOptimizer.
#include <guozhuang/guozhuang.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "support/cases/training_parts.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// The outer step on one number, in double.
struct Outer {
    LocalSgdOptions options;
    double last = 0, momentum = 0;
    double operator()(double mean) {
        const double difference = last - mean;
        momentum = options.outer_momentum * momentum + difference;
        const double change =
            options.nesterov ? difference + options.outer_momentum * momentum : momentum;
        return last -= options.outer_rate * change;
    }
};

/// Drifts of two rounds of two steps, against the same on one number at a time.
void averages_as_by_hand(const LocalSgdOptions& options, Session& session, Report& report) {
    Weights weights;
    std::vector<Outer> outer;
    for (const double value : weights.flat()) outer.push_back({options, value});
    LocalSgd local(weights.parameters(), options);
    for (int step = 1; step <= 3 * options.steps; ++step) {
        weights.drift(session.rank(), step);
        const bool averages = step % options.steps == 0;
        const auto own = weights.flat();
        report.expect(local.step() == averages, "whether a step averages");
        if (!averages) {
            report.expect(weights.flat() == own, "a step that does not average changes nothing");
            continue;
        }
        std::vector<double> expected;
        for (std::size_t i = 0; i < outer.size(); ++i) {
            double sum = 0;
            for (int rank = 0; rank < session.size(); ++rank) {
                double value = outer[i].last;
                for (int each = step - options.steps + 1; each <= step; ++each)
                    value += drift_of(rank, each, i);
                sum += value;
            }
            expected.push_back(outer[i](sum / session.size()));
        }
        report.expect(are_close(weights.flat(), expected), text_of("values after step ", step));
        report.same_everywhere("values", weights.bytes());
    }
}

/// A model of one rank: the loss is |w - target|^2 / 2, with another target on each rank.
struct Quadratic {
    Weights weights;
    std::vector<float> gradient_a = std::vector<float>(weights.a.size());
    std::vector<double> gradient_b = std::vector<double>(weights.b.size());
    void backward(int rank, int step) {
        for (std::size_t i = 0; i < gradient_a.size(); ++i)
            gradient_a[i] = weights.a[i] - static_cast<float>(drift_of(rank, step, i));
        for (std::size_t i = 0; i < gradient_b.size(); ++i)
            gradient_b[i] = weights.b[i] - drift_of(rank, step, i);
    }
    void step() {
        for (std::size_t i = 0; i < gradient_a.size(); ++i) weights.a[i] -= 0.1F * gradient_a[i];
        for (std::size_t i = 0; i < gradient_b.size(); ++i) weights.b[i] -= 0.1 * gradient_b[i];
    }
    std::vector<Parameter> parameters() {
        return {{"a", weights.a, gradient_a}, {"b", weights.b, gradient_b}};
    }
};

std::string refusal(const LocalSgdOptions& options) {
    std::string text;
    run_ranks(1, [&](Session&) {
        Weights weights;
        try {
            const LocalSgd local(weights.parameters(), options);
        } catch (const Error& error) {
            text = error.what();
        }
    });
    return text;
}

}  // namespace

TEST_CASE("values are averaged every few steps, with each kind of outer step") {
    for (const int ranks : {1, 2, 3, 4})
        for (const auto& options :
             {LocalSgdOptions{.steps = 1}, LocalSgdOptions{.steps = 3},
              LocalSgdOptions{.steps = 2, .outer_rate = 0.7},
              LocalSgdOptions{.steps = 2, .outer_momentum = 0.9},
              LocalSgdOptions{
                  .steps = 2, .outer_rate = 0.7, .outer_momentum = 0.9, .nesterov = true}}) {
            INFO(ranks << " ranks, every " << options.steps << " steps, rate "
                       << options.outer_rate);
            CHECK(problems_among(ranks, [&](Session& session, Report& report) {
                      averages_as_by_hand(options, session, report);
                  }) == "");
        }
}

TEST_CASE("averages of values after every step are averages of gradients, for plain SGD") {
    for (const int ranks : {1, 2, 3, 4})
        CHECK(problems_among(ranks, [](Session& session, Report& report) {
                  Quadratic together, alone;
                  DistributedOptimizer optimizer(together, together.parameters());
                  LocalSgd local(alone.parameters(), {.steps = 1});
                  for (int step = 0; step < 20; ++step) {
                      together.backward(session.rank(), step);
                      optimizer.step();
                      alone.backward(session.rank(), step);
                      alone.step();
                      local.step();
                  }
                  report.expect(are_close(alone.weights.flat(), together.weights.flat()),
                                "the same training");
              }) == "");
}

TEST_CASE("synchronize() averages whatever number of steps each rank has made") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              Weights weights;
              LocalSgd local(weights.parameters(), {.steps = 4});
              for (int step = 0; step < session.rank(); ++step) {
                  for (auto& value : weights.a) value += 3;
                  local.step();
              }
              local.synchronize();
              report.expect(are_close({weights.a[0]}, {Weights().a[0] + 3}), "the mean of 0, 3, 6");
              report.same_everywhere("values", weights.bytes());
              for (int step = 1; step <= 4; ++step)
                  report.expect(local.step() == (step == 4), "four steps to the next average");
          }) == "");
}

TEST_CASE("the state that a resume needs goes to all ranks") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              const LocalSgdOptions options{.steps = 2, .outer_momentum = 0.5};
              Weights weights;
              LocalSgd local(weights.parameters(), options);
              weights.drift(session.rank(), 1);
              if (session.rank() == 0) local.step();
              for (const auto& [name, tensor] : local.state())
                  if (name == "momentum/b" && session.rank() == 0)
                      static_cast<double*>(tensor.data)[0] = 5;
              broadcast_optimizer_state(local);
              for (const auto& [name, tensor] : local.state()) {
                  if (name == "steps")
                      report.expect(*static_cast<std::int64_t*>(tensor.data) == 1, "steps");
                  report.same_everywhere(name, tensor.memory());
              }
              report.expect(local.step(), "one step more is the second");
          }) == "");
}

TEST_CASE("ranks that average differently, or did not start equal, are told so") {
    for (const bool differ_at_start : {false, true})
        CHECK(problems_among(2, [&](Session& session, Report& report) {
                  Weights weights;
                  if (differ_at_start) weights.drift(session.rank(), 1);
                  const int steps = differ_at_start ? 1 : 1 + session.rank();
                  LocalSgd local(weights.parameters(), {.steps = steps, .outer_rate = 0.5});
                  const auto before = weights.flat();
                  const auto text = error_text([&] {
                      for (int step = 0; step < steps; ++step) local.step();
                  });
                  report.expect(
                      text.starts_with("mismatch") &&
                          text.find(differ_at_start ? "values at the last average"
                                                    : "values of steps") != std::string::npos,
                      text);
                  report.expect(weights.flat() == before, "nothing is changed");
              }) == "");
}

TEST_CASE("a rank that leaves its loop ends the others' by name, one that joins does not") {
    const LogCapture log;
    CHECK(problems_among(3, [](Session& session, Report& report) {
              Weights weights;
              std::optional<LocalSgd> local(std::in_place, weights.parameters(),
                                            LocalSgdOptions{.steps = 2});
              local->step();
              if (session.rank() == 1) {
                  local.reset();
                  session.leave("no data");
                  return;
              }
              const auto text = error_text([&] { local->step(); });
              report.expect(
                  text.starts_with("departed") && text.find("rank 1") != std::string::npos, text);
          }) == "");
    CHECK(problems_among(3, [](Session& session, Report& report) {
              Weights weights;
              LocalSgd local(weights.parameters(), {.steps = 1, .outer_rate = 0.5});
              for (int step = 0; step <= session.rank(); ++step) {
                  weights.drift(session.rank(), step);
                  local.step();
              }
              const int last = join();
              report.expect_equal(last, 2, "the last to join");
              broadcast_parameters(weights.parameters(), last);
              const auto text = error_text([&] { local.step(); });
              report.expect(
                  text.find("after a join broadcast_optimizer_state") != std::string::npos, text);
              broadcast_optimizer_state(local, last);
              local.step();
              report.same_everywhere("values", weights.bytes());
          }) == "");
}

TEST_CASE("options and values that LocalSgd cannot use") {
    CHECK(refusal({.steps = 0}) == "LocalSgd: steps is 0; it must be 1 at least");
    CHECK(refusal({.name = "x", .outer_rate = 0}) ==
          "LocalSgd 'x': outer_rate is 0; it must be above 0");
    CHECK(refusal({.outer_momentum = 1}) ==
          "LocalSgd: outer_momentum is 1; it must be 0 at least and below 1");
    CHECK(refusal({.nesterov = true}) == "LocalSgd: nesterov needs an outer_momentum above 0");
    CHECK(refusal({}) == "");
    run_ranks(1, [](Session&) {
        for (const auto& [parameters, problem] : unusable_parameters())
            CHECK_THROWS_WITH(LocalSgd(parameters), "LocalSgd: " + problem);
    });
}

TEST_CASE("values in the same memory are averaged once") {
    run_ranks(1, [](Session&) {
        std::vector<float> tied{4, 8};
        LocalSgd local({{"in", tied, {}}, {"out", tied, {}}}, {.steps = 1, .outer_rate = 0.5});
        tied = {8, 8};
        local.step();
        CHECK(tied == std::vector<float>{6, 8});
    });
}
