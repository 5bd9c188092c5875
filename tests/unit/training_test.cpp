// Data-parallel training, worked out by hand and against one process.
#include "support/cases/training_cases.hpp"

#include "api/process_set_state.hpp"
#include "support/cases/batch_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

std::vector<double> trained(int ranks, int passes, int steps) {
    std::vector<std::vector<double>> values(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Session& session) {
        values[static_cast<std::size_t>(session.rank())] =
            train(session, two_samples, passes, steps, 1e-3);
    });
    for (const auto& value : values) CHECK(value == values[0]);
    return values[0];
}

/// Parameters of one rank, and their gradients.
struct Accumulation {
    std::vector<float> a = {1}, b = {2}, gradient_a = {1}, gradient_b = {2};
    std::vector<Parameter> parameters() { return {{"a", a, gradient_a}, {"b", b, gradient_b}}; }
};

struct Stepper {
    int steps = 0;
    void step() { ++steps; }
};

/// The refusal of an act on one rank; empty if it is none.
std::string refusal(const std::function<void(Session&)>& act) {
    std::string text;
    run_ranks(1, [&](Session& session) {
        const auto error = error_of([&] { act(session); });
        if (error)
            text = error->code() == ErrorCode::invalid_argument ? error->what() : "another error";
    });
    return text;
}

}  // namespace

// Gradients at zero: sample 1 -2*15*(6, 2, 1) = (-180, -60, -30), sample 2 -2*12*(5, 2, 1) = (-120,
// -48, -24); their mean (-150, -54, -27).
TEST_CASE(
    "two ranks with a sample each, one rank with both, and two passes of one rank are the same "
    "training") {
    CHECK(are_close(trained(2, 1, 1), {0.150, 0.054, 0.027}, 1e-15));
    // Exactly: halving a double is exact, so (a + b)/2 and a/2 + b/2 are the same number.
    for (const int steps : {1, 2, 100}) {
        const auto expected = train_alone(two_samples, steps, 1e-3);
        CHECK(trained(2, 1, steps) == expected);
        CHECK(trained(1, 1, steps) == expected);
        CHECK(trained(1, 2, steps) == expected);
    }
}

TEST_CASE("a batch of 64 is four batches of 16 with the loss divided by 4") {
    const auto batch = random_samples(64);
    run_ranks(1, [&](Session& session) {
        CHECK(are_close(train(session, batch, 4, 100, 4e-5), train_alone(batch, 100, 4e-5), 1e-12));
        CHECK_FALSE(
            are_close(train(session, batch, 4, 100, 4e-5), train_alone(batch, 101, 4e-5), 1e-12));
    });
}

TEST_CASE("training on any number of ranks") {
    for (const int ranks : {1, 2, 3, 4, 5})
        for (const auto& body : all_training_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("batches that fail on one rank fail on all, and all go on") {
    const LogCapture log;
    for (const int ranks : {1, 2, 3, 4})
        for (const auto& body : all_batch_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("a parameter that no hook marked counts as zero, with one warning") {
    const LogCapture log;
    run_ranks(1, [](Session&) {
        Accumulation model;
        Stepper stepper;
        DistributedOptimizer optimizer(stepper, model.parameters());
        for (int step = 0; step < 3; ++step) {
            model.gradient_a = {5};
            model.gradient_b = {7};
            optimizer.on_gradient()("a");
            CHECK(optimizer.step());
            CHECK(model.gradient_a[0] == 5);
            CHECK(model.gradient_b[0] == 0);
        }
        CHECK(stepper.steps == 3);
    });
    CHECK(log.with("the gradient of 'b' was not marked").size() == 1);
}

TEST_CASE("what was marked while gradients only accumulate is not zero") {
    const LogCapture log;
    run_ranks(1, [](Session&) {
        Accumulation model;
        Stepper stepper;
        DistributedOptimizer optimizer(stepper, model.parameters());
        const auto hook = optimizer.on_gradient();
        {
            const auto guard = optimizer.no_sync();
            hook("a");
            hook("b");
            hook("b");  // another pass
        }
        hook("a");
        CHECK(optimizer.step());
        CHECK(model.gradient_b[0] == 2);

        DistributedOptimizer twice(stepper, model.parameters(),
                                   {.name = "twice", .backward_passes_per_step = 2});
        twice.on_gradient()("b");
        CHECK_FALSE(twice.step());
        twice.on_gradient()("a");
        CHECK(twice.step());
        CHECK(model.gradient_b[0] == 2);
        twice.on_gradient()("a");
        CHECK_FALSE(twice.step());
        twice.on_gradient()("a");
        CHECK(twice.step());
        CHECK(model.gradient_b[0] == 0);  // a new step
    });
    CHECK(log.with("was not marked").size() == 1);
}

TEST_CASE("no_sync holds the reduction back") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Accumulation model;
              Stepper stepper;
              DistributedOptimizer optimizer(stepper, model.parameters());
              {
                  const auto guard = optimizer.no_sync();
                  optimizer.on_gradient()("a");
                  optimizer.on_gradient()("b");
                  model.gradient_a[0] += static_cast<float>(4 * session.rank());
              }
              optimizer.on_gradient()("b");
              optimizer.on_gradient()("a");
              optimizer.step();
              report.expect(
                  model.gradient_a[0] == 3 && model.gradient_b[0] == 2 && stepper.steps == 1,
                  "the average of what accumulated");
          }) == "");
}

TEST_CASE("synchronize gives the averages, and step then only steps") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Accumulation model;
              Stepper stepper;
              DistributedOptimizer optimizer(stepper, model.parameters());
              model.gradient_a = {session.rank() == 0 ? 2.0F : 4.0F};
              model.gradient_b = {4};
              optimizer.synchronize();
              optimizer.synchronize();
              report.expect(clip_by_global_norm(model.parameters(), 1) == 5, "the norm of (3, 4)");
              report.expect(optimizer.step() && stepper.steps == 1, "stepped");
              report.expect(std::abs(model.gradient_a[0] - 0.6F) < 1e-6F &&
                                std::abs(model.gradient_b[0] - 0.8F) < 1e-6F,
                            "clipped, and not reduced again");
              report.expect(std::abs(clip_by_global_norm(model.parameters(), 10) - 1) < 1e-6 &&
                                std::abs(model.gradient_b[0] - 0.8F) < 1e-6F,
                            "short enough");
          }) == "");
}

TEST_CASE("a wait for the averages ends at its limit, and another goes on with it") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              using namespace std::chrono_literals;
              Accumulation model;
              Stepper stepper;
              DistributedOptimizer optimizer(stepper, model.parameters());
              model.gradient_a = {session.rank() == 0 ? 2.0F : 4.0F};
              if (session.rank() == 0) {
                  report.expect(!optimizer.synchronize_for(1ms), "rank 1 has not come");
                  report.expect(!optimizer.synchronize_for(-1ms), "nor in no time");
              }
              barrier();
              while (!optimizer.synchronize_for(1ms)) {
              }
              report.expect(model.gradient_a[0] == 3 && optimizer.synchronize_for(0ms), "averages");
              report.expect(optimizer.step() && stepper.steps == 1, "stepped");
          }) == "");
}

TEST_CASE("a rank that gives up its wait for the averages leaves the batch out alone") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              using namespace std::chrono_literals;
              Accumulation model;
              Stepper stepper;
              DistributedOptimizer optimizer(stepper, model.parameters());
              if (session.rank() == 0)
                  report.expect(!optimizer.synchronize_for(1ms), "rank 1 has not come");
              barrier();
              if (session.rank() == 0)
                  optimizer.discard("it takes too long");
              else
                  report.expect(optimizer.step(), "has stepped");
              expect_error(report, ErrorCode::mismatch, {"reduced and then left out"},
                           [&] { optimizer.step(); });
          }) == "");
}

TEST_CASE("misuse of an optimizer is an error at once") {
    std::vector<float> value(2), gradient(2), short_gradient(1);
    const Parameter good{"w", value, gradient};
    const auto construct = [&](std::vector<Parameter> parameters, OptimizerOptions options = {}) {
        return refusal([&](Session&) { GradientReducer(std::move(parameters), options); });
    };
    CHECK(construct({good}) == "");
    CHECK(construct({}) == "DistributedOptimizer: there are no parameters");
    CHECK(construct({good, good}) == "DistributedOptimizer: two parameters are called 'w'");
    CHECK(construct({{"", value, gradient}}) == "DistributedOptimizer: parameter 0 has no name");
    CHECK(construct({{"w", value, short_gradient}}) ==
          "DistributedOptimizer: value and gradient of 'w' differ in shape");
    CHECK(construct({good}, {.backward_passes_per_step = 0}).find("must be 1 at least") !=
          std::string::npos);
    CHECK(construct({good}, {.groups = {0, 1}}) ==
          "DistributedOptimizer: there are groups of 2 parameters, but 1 parameters");
    CHECK(construct({good, {"v", gradient, value}}, {.uses = short_gradient}) ==
          "DistributedOptimizer: there is room for the uses of 1 parameters; there are 2");
    CHECK(construct({good}, {.op = ReduceOp::max, .uses = short_gradient}) ==
          "DistributedOptimizer: gradients are combined by average, sum or adasum, not by 'max'");
    CHECK(construct({good}, {.name = "#1 plan"})
              .find("plan '#1 plan': names that begin with # are those of") == 0);
    auto strided = good;
    strided.gradient.strides = {2};
    CHECK(construct({strided}).find("optimizer 'w': the tensor is not contiguous") == 0);
    CHECK(construct({strided}, {.name = "sgd"}).find("plan 'sgd' 'w': the tensor is not") == 0);
    std::vector<std::int32_t> numbers(2);
    CHECK(construct({good, {"n", numbers, numbers}}, {.gradient_scale = 0.5})
              .find("allreduce 'optimizer/bundle 0': 'n': scales must be 1 on i32") == 0);

    const auto mark = [&](const std::vector<std::string>& names) {
        return refusal([&](Session&) {
            GradientReducer reducer({good, {"v", value, gradient}});
            CHECK(reducer.name() == "#1 optimizer");
            for (const auto& name : names)
                name == "step" ? static_cast<void>(reducer.finish_pass()) : reducer.mark(name);
        });
    };
    CHECK(mark({"w", "v", "step", "v", "w", "step"}) == "");
    CHECK(mark({"w", "w"}) ==
          "DistributedOptimizer '#1 optimizer': the gradient of 'w' was marked ready twice in one "
          "step; a batch that step() will not end is "
          "ended by discard()");
    CHECK(mark({"u"}) == "DistributedOptimizer '#1 optimizer': there is no parameter called 'u'");
    CHECK(mark({"w", "v", "step", "step"}).find("was it called twice?") != std::string::npos);
    CHECK(refusal([&](Session&) {
              GradientReducer({good}).mark(1);
          }).find("there is no parameter 1; there are 1") != std::string::npos);
}

TEST_CASE("parameters are made of whatever a trainer keeps them in") {
    struct Layer {
        const char* name;
        std::span<float> value;
        std::vector<double> gradient;
    };
    std::vector<float> numbers(6);
    std::vector<Layer> layers{{"a", std::span(numbers).first(2), {1, 2}},
                              {"b", std::span(numbers).last(4), {1, 2, 3, 4}}};
    const auto parameters = parameters_of(layers);
    REQUIRE(parameters.size() == 2);
    CHECK(parameters[1].name == "b");
    CHECK(parameters[1].value.data == numbers.data() + 2);
    CHECK(parameters[1].value.shape == Shape{4});
    CHECK(parameters[0].gradient.data == layers[0].gradient.data());
    CHECK(parameters[0].gradient.dtype == DType::f64);
    CHECK(parameters_of(parameters)[0].value.data == numbers.data());
    const Device device{DeviceKind::cuda, 1};
    const auto there = parameters_of(parameters_of(layers, device));
    CHECK(there[1].value.device == device);
    CHECK(there[0].gradient.device == device);
    CHECK(there[0].gradient.data == layers[0].gradient.data());
}

TEST_CASE("plans refuse what they cannot do") {
    std::vector<float> numbers(2);
    CHECK(refusal([&](Session&) {
              Plan({{{"", numbers}}});
          }).find("has no name") != std::string::npos);
    CHECK(refusal([&](Session&) {
              Plan({{{"a", numbers}, {"a", numbers}}});
          }).find("two tensors are called 'a'") != std::string::npos);
    CHECK(refusal([&](Session&) {
              Plan(std::vector<std::vector<NamedTensor>>(1));
          }).find("has no tensors") != std::string::npos);
    CHECK(refusal([&](Session&) {
              Plan({{{"a", TensorView(nullptr, DType::f32, {2})}}});
          }).find("null data") != std::string::npos);
    CHECK(refusal([&](Session&) {
              Plan({{{"a", numbers}}}).ready(1);
          }).find("there is no bundle 1") != std::string::npos);
    run_ranks(1, [&](Session&) {
        Plan plan({{{"a", numbers}}});
        plan.ready(0);
        CHECK_THROWS_AS(plan.ready(0), Error);
        plan.wait();
        plan.ready(0);
        plan.wait();
        CHECK(plan.name() == "#1 plan");
    });
}

TEST_CASE("bundles that a caller waits for next are moved by its wait") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> a(2), b(3);
              Plan plan({{{"a", a}}, {{"b", b}}}, {.op = ReduceOp::sum, .session = &session});
              for (int turn = 0; turn < 4; ++turn) {
                  std::ranges::fill(a, static_cast<float>(session.rank()));
                  std::ranges::fill(b, 2.0f);
                  plan.ready(0, {.waits_next = true});
                  plan.ready(1, {.waits_next = true});
                  if (turn % 2 == 1)
                      report.expect(plan.wait_for(std::chrono::seconds(20)), "it takes long");
                  plan.wait();
                  report.expect(a == std::vector<float>(2, 1) && b == std::vector<float>(3, 4),
                                "another sum");
              }
          }) == "");
    // Ranks that take turns have no thread that could ring meanwhile.
    run_ranks(1,
              [](Session& session) {
                  const auto& rings =
                      api::set_runtime_of(&session, {})->transport().doorbell().rings;
                  std::vector<float> numbers(2);
                  Plan plan({{{"a", numbers}}}, {.session = &session});
                  for (const bool waits_next : {true, false}) {
                      const auto before = rings.load();
                      plan.ready(0, {.waits_next = waits_next});
                      CHECK((rings.load() == before) == waits_next);
                      plan.wait();
                  }
              },
              {.turns = 1});
}

TEST_CASE("a plan that takes the place of another leaves what that one has under way with a copy") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> numbers(2, static_cast<float>(session.rank()));
              int word = 0;
              Plan plan({{{"a", numbers}}}, {.name = "old", .op = ReduceOp::sum});
              if (session.rank() == 0) {
                  numbers = {5, 5};
                  plan.ready(0);
                  plan = Plan({{{"a", numbers}}}, {.name = "new", .op = ReduceOp::sum});
                  numbers = {2, 2};
                  send(word, 1);
              } else {
                  recv(word, 0);
                  plan.ready(0);
                  plan.wait();
                  report.expect(numbers == std::vector<float>{6, 6}, "the old sum");
                  plan = Plan({{{"a", numbers}}}, {.name = "new", .op = ReduceOp::sum});
              }
              plan.ready(0);
              plan.wait();
              report.expect(numbers == std::vector<float>{8, 8}, "the new sum");
          }) == "");
}

TEST_CASE("gradients of several devices and dtypes are reduced, each kind in bundles of its own") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> values(2);
              std::vector<std::vector<float>> gradients(
                  4, std::vector<float>(2, static_cast<float>(session.rank())));
              std::vector<Parameter> parameters;
              for (std::size_t i = 0; i < gradients.size(); ++i) {
                  TensorView gradient(gradients[i]);
                  if (i % 2 == 1) gradient.device = {DeviceKind::cuda, 0};
                  parameters.push_back({text_of("p", i), values, gradient});
              }
              GradientReducer(parameters).finish_pass();
              for (const auto& gradient : gradients)
                  report.expect(gradient == std::vector<float>(2, 0.5F), "the average");
          }) == "");
}

TEST_CASE("learning rate, steps and printing") {
    run_ranks(3, [](Session& session) {
        if (session.rank() != 0) return;
        CHECK(scale_learning_rate(0.1) == 0.1 * 3);
        CHECK(steps_per_epoch(100, 10) == 4);
        CHECK(steps_per_epoch(90, 10) == 3);
        CHECK(steps_per_epoch(0, 10) == 0);
        CHECK_THROWS_AS(steps_per_epoch(10, 0), Error);
        std::vector<std::int32_t> integers(2);
        CHECK_THROWS_AS(clip_by_global_norm(std::vector<Parameter>{{"n", integers, integers}}, 1),
                        Error);
        std::vector<float> gradient{3, 4};
        for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
            CHECK_THROWS_AS(
                clip_by_global_norm(std::vector<Parameter>{{"w", gradient, gradient}}, bad), Error);
            CHECK(gradient == std::vector<float>{3, 4});
        }
        CHECK(clip_by_global_norm(std::vector<Parameter>{{"w", gradient, gradient}},
                                  std::numeric_limits<double>::infinity()) == 5);
    });
}
