// Exponential moving averages of values.
#include <guozhuang/guozhuang.hpp>

#include "support/cases/training_parts.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("the averages forget at the rate of the decay") {
    for (const bool warm_up : {false, true}) {
        Weights weights;
        auto expected = weights.flat();
        Ema ema(weights.parameters(), {.decay = 0.25, .warm_up = warm_up});
        for (int t = 0; t < 6; ++t) {
            weights.drift(1, t);
            ema.step();
            const double decay = warm_up ? std::min(0.25, (1.0 + t) / (10.0 + t)) : 0.25;
            const auto values = weights.flat();
            for (std::size_t i = 0; i < values.size(); ++i)
                expected[i] = decay * expected[i] + (1 - decay) * values[i];
            ema.swap();
            CHECK(ema.is_swapped());
            CHECK(are_close(weights.flat(), expected));
            ema.swap();
            CHECK(weights.flat() == values);
        }
    }
}

TEST_CASE("with a decay of 0 the average is the value, and a still value is its average") {
    Weights weights;
    Ema last(weights.parameters(), {.decay = 0}), still(weights.parameters());
    for (int step = 0; step < 100; ++step) still.step();
    const auto before = weights.flat();
    still.swap();
    CHECK(are_close(weights.flat(), before));
    still.swap();
    weights.drift(0, 3);
    last.step();
    const auto values = weights.flat();
    last.swap();
    CHECK(weights.flat() == values);
}

TEST_CASE("swapped averages are neither stepped nor sent") {
    Weights weights;
    Ema ema(weights.parameters());
    ema.swap();
    const std::string text =
        "Ema: the averages are in the parameters; swap() them back before the next step";
    CHECK_THROWS_WITH(ema.step(), text);
    CHECK_THROWS_WITH(ema.state(), text);
    ema.swap();
    ema.step();
    CHECK(ema.state().size() == 3);
}

TEST_CASE("ranks that train together have the same averages, also after a resume") {
    for (const int ranks : {1, 2, 3, 4})
        CHECK(problems_among(ranks, [](Session& session, Report& report) {
                  Weights weights;
                  Ema ema(weights.parameters(), {.decay = 0.9, .warm_up = true});
                  if (session.rank() == 0) {  // the rank that has loaded a checkpoint
                      weights.drift(0, 1);
                      ema.step();
                      ema.step();
                  }
                  broadcast_parameters(weights.parameters());
                  broadcast_optimizer_state(ema);
                  for (int step = 0; step < 5; ++step) {
                      weights.drift(0, step);
                      ema.step();
                  }
                  for (const auto& [name, tensor] : ema.state())
                      report.same_everywhere(name, tensor.memory());
                  report.expect(*static_cast<std::uint64_t*>(ema.state()[0].tensor.data) == 7,
                                "steps");
              }) == "");
}

TEST_CASE("values in the same memory are swapped once") {
    std::vector<float> tied{4};
    Ema ema({{"in", tied, {}}, {"out", tied, {}}}, {.decay = 0.5});
    tied = {8};
    ema.step();
    ema.swap();
    CHECK(tied == std::vector<float>{6});
}

TEST_CASE("options and values that Ema cannot use") {
    Weights weights;
    for (const double bad : {1.0, -0.1})
        CHECK_THROWS_WITH(Ema(weights.parameters(), {.decay = bad}),
                          text_of("Ema: decay is ", bad, "; it must be 0 at least and below 1"));
    for (const auto& [parameters, problem] : unusable_parameters())
        CHECK_THROWS_WITH(Ema(parameters), "Ema: " + problem);
}
