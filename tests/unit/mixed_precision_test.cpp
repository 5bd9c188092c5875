// Loss scaling and master weights.
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/fakes/slow_stream.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/report.hpp"
#include "support/tensors/device_views.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_finite = std::numeric_limits<float>::quiet_NaN();

template <class Short>
std::vector<Short> rounded(const std::vector<float>& values) {
    std::vector<Short> result(values.size());
    convert(values, result);
    return result;
}

template <class Short>
std::vector<float> widened(const std::vector<Short>& values) {
    std::vector<float> result(values.size());
    convert(values, result);
    return result;
}

std::string refusal(const std::function<void()>& act) {
    const auto error = error_of(act);
    return !error ? "" : error->code() == ErrorCode::invalid_argument ? error->what() : "another";
}

/// Gradient descent on f32 memory.
struct Descent {
    std::vector<Parameter> parameters;
    float rate = 1;
    int steps = 0, failures = 0;

    void step() {
        if (failures > 0 && failures-- > 0) throw std::runtime_error("not now");
        for (const auto& [name, value, gradient] : parameters)
            for (std::size_t i = 0; i < value.count(); ++i)
                static_cast<float*>(value.data)[i] -=
                    rate * static_cast<const float*>(gradient.data)[i];
        ++steps;
    }
    template <class V>
    void visit_state(V&& visit) {
        visit("steps", steps);
    }
};

auto descent_with(float rate) {
    return [rate](const std::vector<Parameter>& copies) {
        return Descent{.parameters = copies, .rate = rate};
    };
}

/// A parameter with its gradient.
template <class T>
struct Weights {
    std::vector<T> value, gradient;
    explicit Weights(const std::vector<T>& start) : value(start), gradient(start.size()) {}
    std::vector<Parameter> parameters() { return {{"w", value, gradient}}; }
};

/// All that training in mixed precision takes.
struct Mixed {
    Weights<Half> weights;
    MasterWeights<Descent> master;
    GradScaler scaler;
    DistributedOptimizer<GradScaler> optimizer;

    explicit Mixed(const std::vector<float>& start, const GradScalerOptions& options = {},
                   float rate = 1, const OptimizerOptions& reduction = {})
        : weights(rounded<Half>(start)),
          master(weights.parameters(), descent_with(rate)),
          scaler(master, weights.parameters(), options),
          optimizer(scaler, weights.parameters(), reduction) {}
    /// Backward leaves these gradients, as f16 holds them.
    bool step(const std::vector<float>& gradients) {
        convert(gradients, weights.gradient);
        return scaler.step(optimizer);
    }
    std::vector<float> values() const { return widened(weights.value); }
};

/// The same in f32, without master weights.
struct Plain {
    Weights<float> weights;
    Descent descent;
    GradScaler scaler;
    DistributedOptimizer<GradScaler> optimizer;

    explicit Plain(const std::vector<float>& start, const GradScalerOptions& options = {},
                   const OptimizerOptions& reduction = {})
        : weights(start),
          descent{weights.parameters()},
          scaler(descent, weights.parameters(), options),
          optimizer(scaler, weights.parameters(), reduction) {}
    bool step(const std::vector<float>& gradients) {
        weights.gradient = gradients;
        return scaler.step(optimizer);
    }
    const std::vector<float>& values() const { return weights.value; }
};

/// Least squares: rank r has the sample (x, y) = (r + 1, (r + 1) target). The gradient of the mean
/// loss, times `scale`.
float slope(float weight, float target, const Session& session, double scale = 1) {
    const auto x = static_cast<float>(session.rank() + 1);
    return static_cast<float>(scale) * 2 * x * (x * weight - x * target);
}

}  // namespace

TEST_CASE("updates below half a unit in the last place add up in master weights only") {
    const float rate = 4e-4F, start = 0.9F, target = 1;
    CHECK(problems_among(2, [&](Session& session, Report& report) {
              Mixed mixed({start}, {.initial_scale = 1}, rate);
              Weights<Half> pure(rounded<Half>({start}));
              struct PureDescent {  // computes in f32, and keeps the values in f16
                  Weights<Half>& weights;
                  float rate;
                  void step() const {
                      const auto slope = widened(weights.gradient)[0];
                      std::vector moved{widened(weights.value)[0] - rate * slope};
                      convert(moved, weights.value);
                  }
              } descent{pure, rate};
              DistributedOptimizer optimizer(descent, pure.parameters(), {.name = "pure"});
              for (int step = 0; step < 3000; ++step) {
                  mixed.step({slope(mixed.values()[0], target, session, mixed.scaler.scale())});
                  std::vector slopes{slope(widened(pure.value)[0], target, session)};
                  convert(slopes, pure.gradient);
                  optimizer.step();
              }
              report.expect_equal(widened(pure.value)[0], widened(rounded<Half>({start}))[0],
                                  "pure f16 has not moved");
              // Gradients come from the rounded value, so this is as near as f16 comes.
              report.expect(std::abs(mixed.values()[0] - target) < 2 * 0x1p-11F,
                            text_of("with master weights ", mixed.values()[0]));
          }) == "");
}

TEST_CASE("a loss scale saves gradients that f16 does not hold") {
    const auto train = [](double scale, float target) {
        float value = 0;
        CHECK(problems_among(2, [&](Session& session, Report& report) {
                  // A loss 1e-9 times as large, and a rate as much larger.
                  Mixed mixed({0}, {.initial_scale = scale}, 1e-2F * 1e9F);
                  for (int step = 0; step < 400; ++step)
                      mixed.step(
                          {slope(mixed.values()[0], target, session, 1e-9 * mixed.scaler.scale())});
                  report.expect_equal(mixed.scaler.skipped(), std::int64_t{0}, "skipped");
                  if (session.rank() == 0) value = mixed.values()[0];
              }) == "");
        return value;
    };
    CHECK(train(1, 1) == 0);
    CHECK(std::abs(train(65536, 1) - 1) < 2e-3F);
}

TEST_CASE("an overflow on one rank skips the batch on all") {
    const auto check = [](auto& trainer, const std::vector<float>& start, Session& session,
                          Report& report) {
        const auto last = session.size() - 1;
        double scale = trainer.scaler.scale();
        std::int64_t skipped = 0;
        for (const float bad : {infinite, -infinite, not_finite}) {
            report.expect(trainer.step({1, session.rank() == last ? bad : 1}), "a batch has ended");
            report.expect(trainer.values() == start, "no rank has stepped");
            report.expect_equal(trainer.scaler.scale(), scale /= 2, "the scale");
            report.expect_equal(trainer.scaler.skipped(), ++skipped, "skipped");
        }
        const auto unit = static_cast<float>(scale);
        report.expect(trainer.step({unit, 2 * unit}), "steps again");
        report.expect(trainer.values() == std::vector<float>{start[0] - 1, start[1] - 2},
                      "with gradients without the scale");
        report.expect_equal(trainer.scaler.scale(), scale, "the scale stays");
    };
    for (const int ranks : {1, 2, 3})
        CHECK(problems_among(ranks, [&](Session& session, Report& report) {
                  Mixed mixed({4, 8}, {.initial_scale = 1024});
                  check(mixed, {4, 8}, session, report);
                  Plain plain({4, 8}, {.initial_scale = 1024});
                  check(plain, {4, 8}, session, report);
              }) == "");
}

TEST_CASE("an overflow of the sum alone skips the batch on all ranks") {
    CHECK(problems_among(2, [](Session&, Report& report) {
              Mixed mixed({4}, {}, 1, {.op = ReduceOp::sum});
              mixed.step({40000});  // on each rank
              report.expect(mixed.values()[0] == 4 && mixed.scaler.skipped() == 1 &&
                                mixed.scaler.scale() == 32768,
                            "skipped");
              mixed.step({16384});
              report.expect(mixed.values()[0] == 3, "stepped");
          }) == "");
}

TEST_CASE("large gradients that are finite are no overflow") {
    run_ranks(1, [](Session&) {
        Mixed mixed(std::vector<float>(1000, 0), {.initial_scale = 65536});
        mixed.step(std::vector<float>(1000, 65504));
        CHECK(mixed.scaler.skipped() == 0);
        CHECK(mixed.values()[999] == -65504.F / 65536);
        Plain plain(std::vector<float>(1000, 0), {.initial_scale = 0x1p100});
        plain.step(std::vector<float>(1000, std::numeric_limits<float>::max()));
        CHECK(plain.scaler.skipped() == 0);
        CHECK(plain.values()[0] == -std::numeric_limits<float>::max() * 0x1p-100F);
    });
}

TEST_CASE("the scale grows after good steps in a row, and f32 holds it") {
    run_ranks(1, [](Session&) {
        Plain plain({0}, {.initial_scale = 8, .growth = 4, .backoff = 0.25, .growth_interval = 3});
        std::vector<double> scales;
        for (const float gradient :
             {1.F, 1.F, not_finite, 1.F, 1.F, 1.F, 1.F, 1.F, 1.F, infinite}) {
            plain.step({gradient});
            scales.push_back(plain.scaler.scale());
        }
        CHECK(scales == std::vector<double>{8, 8, 2, 2, 2, 8, 8, 8, 32, 8});
        CHECK(plain.scaler.skipped() == 2);
        for (int step = 0; step < 300; ++step) plain.step({0});
        CHECK(plain.scaler.scale() == 0x1p126);
        for (int step = 0; step < 300; ++step) plain.step({not_finite});
        CHECK(plain.scaler.scale() == 0x1p-126);
    });
}

TEST_CASE("gradients are clipped by their norm without the scale") {
    CHECK(problems_among(2, [](Session&, Report& report) {
              Plain plain({0, 0}, {.initial_scale = 16, .max_norm = 1});
              plain.step({16 * 3, 16 * 4});
              report.expect(std::abs(plain.values()[0] + 0.6F) < 1e-6F &&
                                std::abs(plain.values()[1] + 0.8F) < 1e-6F,
                            "(3, 4) has norm 5");
              Plain shorter({0, 0}, {.initial_scale = 16, .max_norm = 5});
              shorter.step({16 * 3, 16 * 4});
              report.expect(shorter.values() == std::vector<float>{-3, -4}, "short enough");
              Mixed mixed({0, 0}, {.initial_scale = 16, .max_norm = 2.5});
              mixed.step({16 * 3, 16 * 4});
              report.expect(mixed.values() == widened(rounded<Half>({-1.5, -2})), "half as long");
          }) == "");
}

TEST_CASE("passes that accumulate end no batch of a scaler") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Mixed mixed({4}, {.initial_scale = 4, .growth_interval = 1}, 1,
                          {.backward_passes_per_step = 3});
              const auto batch = [&](float last) {
                  report.expect(!mixed.step({1}) && !mixed.step({1}), "only accumulate");
                  report.expect(mixed.step({session.rank() == 0 ? last : 4}), "ends the batch");
              };
              batch(not_finite);
              report.expect(mixed.values()[0] == 4 && mixed.scaler.scale() == 2, "left out");
              batch(4);
              report.expect(mixed.values()[0] == 2 && mixed.scaler.scale() == 4, "stepped");
              report.expect(!mixed.step({1}), "only accumulates");
              if (session.rank() == 0) {
                  mixed.optimizer.discard("no more data");
              } else {
                  report.expect(!mixed.step({1}), "only accumulates");
                  expect_error(report, ErrorCode::discarded, {"no more data"},
                               [&] { mixed.step({4}); });
              }
              batch(4);
              report.expect(mixed.values()[0] == 1 && mixed.scaler.scale() == 8, "goes on");
          }) == "");
}

TEST_CASE("gradients are divided once, also if the wrapped optimizer throws") {
    const auto check = [](auto& trainer, Descent& descent, Report& report) {
        const auto fail = [&](float gradient) {
            descent.failures = 1;
            try {
                trainer.step({gradient});
                report.expect(false, "no exception");
            } catch (const std::runtime_error&) {
            }
        };
        fail(64);
        report.expect(trainer.scaler.step(trainer.optimizer), "another call steps");
        report.expect_equal(trainer.values()[0], 6.F, "once");
        fail(64);
        trainer.optimizer.discard("it cannot step");
        report.expect(trainer.step({32}), "the next batch");
        report.expect_equal(trainer.values()[0], 5.F, "is divided");
    };
    CHECK(problems_among(2, [&](Session&, Report& report) {
              Plain plain({8}, {.initial_scale = 32});
              check(plain, plain.descent, report);
              Mixed mixed({8}, {.initial_scale = 32});
              check(mixed, mixed.master.wrapped(), report);
          }) == "");
}

TEST_CASE("a rank that skips alone is found in the next batch") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Plain plain({8}, {.initial_scale = 1});
              plain.weights.gradient = {1};
              plain.optimizer.synchronize();
              if (session.rank() == 1) plain.weights.gradient = {not_finite};
              report.expect(plain.scaler.step(plain.optimizer), "the batch has ended");
              expect_error(report, ErrorCode::mismatch, {"reduced and then left out"},
                           [&] { plain.step({1}); });
          }) == "");
}

TEST_CASE("a scaler and its master weights resume from their state") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              // A rank that has joined has neither stepped nor skipped.
              Mixed mixed({1}, {.initial_scale = 8, .growth_interval = 2}, 1e-5F);
              const auto tiny = [&] { return static_cast<float>(mixed.scaler.scale()); };
              mixed.step({tiny()});
              if (session.rank() != 2) {
                  mixed.step({not_finite});
                  mixed.step({tiny()});
              }
              const auto last = join();
              broadcast_parameters(mixed.weights.parameters(), last);
              broadcast_optimizer_state(mixed.scaler, last);
              broadcast_optimizer_state(mixed.master, last);
              report.expect(mixed.scaler.scale() == 4 && mixed.scaler.skipped() == 1, "the scale");
              const auto& copy = mixed.master.wrapped().parameters[0].value;
              const auto value = [&] { return *static_cast<const float*>(copy.data); };
              report.expect_equal(value(), 1 - 1e-5F - 1e-5F, "the copy");
              mixed.step({tiny()});
              report.expect(mixed.scaler.scale() == 8 && mixed.master.wrapped().steps == 3,
                            "the second good step");
              report.expect_equal(value(), 1 - 1e-5F - 1e-5F - 1e-5F, "the copy went on");
          }) == "");
}

TEST_CASE("values that somebody else has changed replace their copies") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Mixed mixed({session.rank() == 0 ? 2.F : 3.F}, {.initial_scale = 1}, 0x1p-14F);
              broadcast_parameters(mixed.weights.parameters());
              for (int step = 0; step < 24; ++step) mixed.step({1});
              report.expect_equal(mixed.values()[0], 2 - 0x1p-9F,
                                  "rank 0's value, and steps of an eighth of a unit");
          }) == "");
}

TEST_CASE("master weights of bf16, beside parameters of f32 and f64") {
    CHECK(problems_among(2, [](Session&, Report& report) {
              Weights<BFloat16> brain(rounded<BFloat16>({2}));
              std::vector<float> single{5}, gradient{1};
              std::vector<BFloat16> short_gradient = rounded<BFloat16>({1});
              std::vector<float> compressed{7}, four{4};
              auto parameters = brain.parameters();
              parameters.push_back({"single", single, gradient});
              parameters.push_back({"compressed", compressed, short_gradient});
              parameters.push_back({"fixed", single, TensorView()});
              MasterWeights master(parameters, descent_with(0x1p-10F));
              report.expect_equal(master.wrapped().parameters.size(), std::size_t{3}, "copies");
              GradScaler scaler(master, parameters, {.initial_scale = 4});
              DistributedOptimizer optimizer(scaler, parameters);
              for (int step = 0; step < 16; ++step) {
                  convert(four, brain.gradient);
                  convert(four, short_gradient);
                  gradient = {4};
                  scaler.step(optimizer);
              }
              report.expect_equal(widened(brain.value)[0], 2 - 0x1p-6F, "bf16");
              report.expect_equal(single[0], 5 - 0x1p-6F, "f32");
              report.expect_equal(compressed[0], 7 - 0x1p-6F, "f32 with a gradient of bf16");
              report.expect_equal(gradient[0], 4.F, "the trainer's gradient is as it was");
          }) == "");
}

TEST_CASE("without a master and in f64") {
    run_ranks(1, [](Session&) {
        std::vector<double> value{1}, gradient{1e150};
        struct Copy {
            std::vector<double>&value, &gradient;
            void step() const { value[0] -= gradient[0]; }
        } descent{value, gradient};
        const std::vector<Parameter> parameters{{"w", value, gradient}};
        GradScaler scaler(descent, parameters, {.initial_scale = 0x1p100});
        DistributedOptimizer optimizer(scaler, parameters);
        scaler.step(optimizer);
        CHECK(value[0] == 1 - 1e150 * 0x1p-100);
        gradient = {1e160};
        scaler.step(optimizer);
        CHECK(scaler.skipped() == 1);
        MasterWeights master(parameters, [](const std::vector<Parameter>& copies) {
            CHECK(copies[0].value.dtype == DType::f64);
            return Descent{};
        });
    });
}

TEST_CASE("gradients on a device are divided on their stream") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              SlowStream stream;
              stream.let_go();
              std::vector<float> value{8}, gradient(1);
              struct OnStream {
                  SlowStream& stream;
                  std::vector<float>&value, &gradient;
                  void step() const {
                      stream.launch([this] { value[0] -= gradient[0]; });
                  }
              } descent{stream, value, gradient};
              const std::vector<Parameter> parameters{
                  {"w", view_of(value, on_fake_device), view_of(gradient, on_fake_device)}};
              GradScaler scaler(descent, parameters,
                                {.initial_scale = 32, .elements = {.stream = stream.ref()}});
              DistributedOptimizer optimizer(scaler, parameters,
                                             {.stream = stream.ref(), .check_values = false});
              for (const float next : {32.F, session.rank() == 1 ? infinite : 32.F, 16.F}) {
                  stream.launch([&] { gradient[0] = next; });
                  report.expect(scaler.step(optimizer), "a batch has ended");
              }
              stream.finish();
              report.expect_equal(value[0], 6.F, "two steps");
              report.expect_equal(scaler.skipped(), std::int64_t{1}, "skipped");
          }) == "");
}

TEST_CASE("a step that fails on all ranks is no overflow") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Plain plain({8});
              if (session.rank() == 1) return;  // shuts down
              expect_error(report, ErrorCode::departed, {"rank 1 has shut down"},
                           [&] { plain.step({1}); });
              report.expect(plain.scaler.skipped() == 0 && plain.scaler.scale() == 65536,
                            "the scale stays");
          }) == "");
}

TEST_CASE("misuse of scalers and master weights is an error at once") {
    run_ranks(1, [](Session&) {
        Weights<Half> half(rounded<Half>({1}));
        Weights<float> single({1});
        Descent descent{single.parameters()};
        CHECK(refusal([&] { GradScaler(descent, half.parameters()); }) ==
              "GradScaler: the gradient of 'w' is f16, which cannot hold it once it is divided by "
              "the scale; wrap the optimizer in MasterWeights");
        const auto construct = [&](const GradScalerOptions& options) {
            return refusal([&] { GradScaler(descent, single.parameters(), options); });
        };
        CHECK(construct({.initial_scale = 0}).find("GradScaler: initial_scale is 0; ") == 0);
        CHECK(construct({.initial_scale = 1e39}).find("initial_scale is 1e+39") !=
              std::string::npos);
        CHECK(construct({.growth = 0.5}).find("growth is 0.5") != std::string::npos);
        CHECK(construct({.backoff = 1}) == "GradScaler: backoff is 1; it must be between 0 and 1");
        CHECK(construct({.growth_interval = 0}).find("growth_interval is 0") != std::string::npos);
        CHECK(construct({.max_norm = not_finite}).find("max_norm is nan") != std::string::npos);

        GradScaler scaler(descent, single.parameters()), other(descent, single.parameters());
        DistributedOptimizer optimizer(scaler, single.parameters());
        CHECK(refusal([&] { other.step(optimizer); }) ==
              "GradScaler: the optimizer wraps another GradScaler");
        single.gradient = {infinite};
        CHECK(refusal([&] {
                  optimizer.step();
              }).find("call the scaler's step(), which leaves such a batch out") !=
              std::string::npos);
        optimizer.discard("not the scaler's");
        const auto hook = optimizer.on_gradient();
        hook(std::size_t{0});
        const auto twice = refusal([&] { hook(std::size_t{0}); });
        CHECK(twice.find("marked ready twice") != std::string::npos);
        CHECK((refusal([&] { scaler.step(optimizer); }) == twice && scaler.skipped() == 0));

        const auto copies = [&](std::vector<Parameter> parameters) {
            return refusal([&] { MasterCopies{std::move(parameters)}; });
        };
        auto strided = half.parameters(), on_device = half.parameters();
        strided[0].gradient.strides = {2};
        on_device[0].value.device = {DeviceKind::cuda, 0};
        CHECK(copies(strided) == "MasterWeights: 'w' has strides; it must be contiguous");
        CHECK(copies(on_device).find("MasterWeights: 'w' is on a device") == 0);
        std::vector<double> doubles{1};
        std::vector<std::int32_t> integers{1};
        CHECK(copies({{"w", doubles, half.gradient}}) ==
              "MasterWeights: 'w' has a value of f64, which cannot be trained with a gradient of "
              "f16");
        CHECK(copies({{"a", half.value, half.gradient}, {"b", half.value, half.value}}) ==
              "MasterWeights: 'b' and 'a' have the same value, but not the same gradient");
        CHECK(copies({{"w", integers, integers}}).find("MasterWeights: 'w' is i32;") == 0);
    });
}
