// Training whose gradients are on a device: nobody waits for it but streams.
#include <chrono>
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <thread>

#include "device/host/float16.hpp"
#include "support/cases/error_cases.hpp"
#include "support/fakes/slow_stream.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/tensors/device_views.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Three parameters, each its own bundle, and descent along their gradients: on a stream if they
/// are on a device.
class Model {
public:
    static constexpr std::size_t count = 3;

    Model(Device device, SlowStream* stream) : device_(device), stream_(stream) {
        for (std::size_t i = 0; i < count; ++i) {
            values[i].assign(100 * i + 5, 1);
            gradients[i].assign(values[i].size(), 0);
        }
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;
    ~Model() {
        if (stream_ == nullptr) return;
        stream_->let_go();
        stream_->finish();
    }
    std::vector<Parameter> parameters() {
        std::vector<Parameter> all;
        for (std::size_t i = 0; i < count; ++i)
            all.push_back(
                {text_of("p", i), view_of(values[i], device_), view_of(gradients[i], device_)});
        return all;
    }
    void backward(int rank) {
        run([this, rank] {
            for (std::size_t i = 0; i < count; ++i)
                for (std::size_t k = 0; k < values[i].size(); ++k)
                    gradients[i][k] = values[i][k] * 0.5F +
                                      static_cast<float>(rank + 1) / static_cast<float>(k + 3);
        });
    }
    void step() {
        run([this] {
            for (std::size_t i = 0; i < count; ++i)
                for (std::size_t k = 0; k < values[i].size(); ++k)
                    values[i][k] -= 0.1F * gradients[i][k];
        });
    }

    std::vector<float> values[count], gradients[count];

private:
    void run(std::function<void()> work) {
        stream_ != nullptr ? stream_->launch(std::move(work)) : work();
    }

    Device device_;
    SlowStream* stream_;
};

OptimizerOptions options_on(Session& session, const std::string& name,
                            std::optional<StreamRef> stream) {
    return {.name = name,
            .first_bundle_bytes = 1,
            .stream = stream,
            .session = &session,
            .check_values = false};
}

void train(Session& session, Model& model, DistributedOptimizer<Model>& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
        model.backward(session.rank());
        for (std::size_t i = Model::count; i-- > 0;) optimizer.on_gradient()(i);
        optimizer.step();
    }
}

}  // namespace

TEST_CASE(
    "steps return while their stream stands still, and give the bits of training on the host") {
    for (const int ranks : {1, 2, 3})
        CHECK(
            problems_among(ranks, [](Session& session, Report& report) {
                constexpr int steps = 50;
                std::vector<float> uses(Model::count);  // which the ranks tell on the host
                Model plain(on_host, nullptr);
                DistributedOptimizer expected(plain, plain.parameters(),
                                              options_on(session, "host", {}));
                train(session, plain, expected, steps);
                const bool tells_uses = session.size() != 2;
                SlowStream stream;
                Model model(on_fake_device, &stream);
                auto options = options_on(session, "device", stream.ref());
                if (tells_uses) options.uses = uses;
                DistributedOptimizer optimizer(model, model.parameters(), options);
                train(session, model, optimizer, steps);
                report.expect(uses == std::vector<float>(Model::count, tells_uses ? 1 : 0), "uses");
                report.expect(model.values[0] == std::vector<float>(5, 1),
                              "all steps return before the stream has begun");
                stream.let_go();
                stream.finish();
                for (std::size_t i = 0; i < Model::count; ++i)
                    report.expect(model.values[i] == plain.values[i], text_of("the bits of p", i));
            }) == "");
}

TEST_CASE("a bundle waits for every stream on which its gradients were marked") {
    CHECK(
        problems_among(2, [](Session& session, Report& report) {
            SlowStream first, second;
            std::vector<float> a(7), b(9), seen;
            const std::vector<Parameter> parameters{
                {"a", view_of(a, on_fake_device), view_of(a, on_fake_device)},
                {"b", view_of(b, on_fake_device), view_of(b, on_fake_device)}};
            GradientReducer reducer(
                parameters,
                {.name = "net", .stream = first.ref(), .session = &session, .check_values = false});
            for (int batch = 0; batch < 2; ++batch) {
                auto &one = batch == 0 ? first : second, &other = batch == 0 ? second : first;
                const auto value = static_cast<float>(10 * batch + session.rank());
                one.launch([&a, value] { a.assign(7, value); });
                reducer.set_stream(one.ref());
                reducer.mark(0);
                other.launch([&b, value] { b.assign(9, value); });
                reducer.set_stream(other.ref());
                reducer.mark(1);
                reducer.synchronize();
                reducer.finish_pass();
                if (batch == 0) {
                    std::jthread later([&] {  // the one that waits for the averages comes first
                        std::this_thread::sleep_for(std::chrono::milliseconds(100));
                        first.let_go();
                    });
                    second.let_go();
                }
                other.launch([&] { seen.insert(seen.end(), {a[6], b[8]}); });
                other.finish();
            }
            report.expect(seen == std::vector<float>{0.5, 0.5, 10.5, 10.5}, "the averages of both");
            expect_error(report, ErrorCode::invalid_argument, {"no gradient is on host 0"},
                         [&] { reducer.set_stream({}); });
        }) == "");
}

TEST_CASE("gradients on a device that nobody marked are cleared there") {
    const LogCapture log;
    CHECK(problems_among(2, [](Session& session, Report& report) {
              SlowStream stream;
              Model model(on_fake_device, &stream);
              DistributedOptimizer optimizer(model, model.parameters(),
                                             options_on(session, "net", stream.ref()));
              model.backward(session.rank());
              optimizer.on_gradient()(std::size_t{0});
              optimizer.step();
              stream.let_go();
              stream.finish();
              report.expect(model.values[1] == std::vector<float>(105, 1), "no step along p1");
              report.expect(model.gradients[2] == std::vector<float>(205, 0), "p2 is cleared");
              report.expect(model.values[0] != std::vector<float>(5, 1), "a step along p0");
          }) == "");
}

TEST_CASE("values on a device are compared when their stream has written them") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              SlowStream stream;
              Model model(on_fake_device, &stream);
              model.values[1][3] = static_cast<float>(session.rank());
              stream.launch([&] { model.values[1][3] = 7; });
              std::jthread other([&] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(200));
                  stream.let_go();
              });
              check_consistent(model.parameters(), &session, stream.ref());
              report.expect(model.values[1][3] == 7, "not written yet");
          }) == "");
}

TEST_CASE("a device with no gradient is known by its values, which their stream has written") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              SlowStream stream;
              std::vector<float> value{static_cast<float>(session.rank())}, uses(1);
              GradientReducer reducer({{"rows", view_of(value, on_fake_device), {}}},
                                      {.session = &session, .uses = uses},
                                      {.stream = [&] { return std::optional(stream.ref()); }});
              stream.launch([&] { value[0] = 7; });
              std::jthread other([&] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  stream.let_go();
              });
              reducer.mark(0);
              if (session.rank() == 0) reducer.mark(0);  // another loss that uses it
              report.expect(reducer.finish_pass(), "the pass reduces");
              stream.finish();
          }) == "");
}

TEST_CASE("values on a device that differ are found before the first step") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              SlowStream stream;
              stream.let_go();
              Model model(on_fake_device, &stream);
              if (session.rank() == 1) model.values[1][3] = 7;
              auto options = options_on(session, "net", stream.ref());
              options.check_values = true;
              DistributedOptimizer optimizer(model, model.parameters(), options);
              model.backward(session.rank());
              expect_error(report, ErrorCode::mismatch, {"'p1'", "values"},
                           [&] { optimizer.step(); });
              expect_error(report, ErrorCode::mismatch, {"'p1' holds other values on rank 1"},
                           [&] { check_consistent(model.parameters(), &session); });
              broadcast_parameters(model.parameters(), 0, &session);
              check_consistent(model.parameters(), &session);
              train(session, model, optimizer, 1);
          }) == "");
}

TEST_CASE("gradients on a device are clipped there as on the host") {
    CHECK(problems_among(1, [](Session&, Report& report) {
              SlowStream stream;
              stream.let_go();
              Model plain(on_host, nullptr), model(on_fake_device, &stream);
              plain.backward(3);
              model.backward(3);
              const ElementOptions on_stream{.stream = stream.ref()};
              const auto norm = clip_by_global_norm(plain.parameters(), 1);
              report.expect(norm > 1, "there is something to clip");
              report.expect(clip_by_global_norm(model.parameters(), 1, on_stream) == norm,
                            "the same norm");
              report.expect(
                  std::abs(clip_by_global_norm(model.parameters(), 10, on_stream) - 1) < 1e-6,
                  "clipped");
              for (std::size_t i = 0; i < Model::count; ++i)
                  report.expect(model.gradients[i] == plain.gradients[i], "the same bits");
              std::vector<Half> half{device::to_half(3), device::to_half(4)};
              const std::vector<Parameter> halves{{"h", half, half}};
              report.expect(clip_by_global_norm(halves, 2.5) == 5, "f16");
              report.expect(clip_by_global_norm(halves, 2.5) == 2.5, "f16, clipped");
          }) == "");
}

TEST_CASE("a bundle is made ready again while the device is busy with it") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              SlowStream stream;
              std::vector<float> a(1000, 1), b(10, 2), c(10, 3);
              Plan plan({{{"a", view_of(a, on_fake_device)}},
                         {{"b", view_of(b, on_fake_device)}},
                         {{"c", view_of(c)}}},
                        {.op = ReduceOp::sum, .stream = stream.ref(), .session = &session});
              for (int round = 0; round < 3; ++round) {
                  for (std::size_t bundle = 0; bundle < 3; ++bundle) plan.ready(bundle);
                  plan.wait(stream.ref());
                  report.expect(c[0] == 3 * std::pow(3.0F, static_cast<float>(round + 1)),
                                "host tensors are waited for");
              }
              report.expect(a[0] == 1 && b[0] == 2, "nothing has begun");
              std::vector<float> seen;
              stream.launch([&] { seen = a; });
              stream.let_go();
              stream.finish();
              report.expect(seen == std::vector<float>(1000, 27), "what comes next sees the sums");
              report.expect(b == std::vector<float>(10, 54), "of all bundles");
          }) == "");
}

TEST_CASE("where the job ends while bundles are enqueued, the next call throws") {
    const LogCapture log;
    SlowStream streams[2];
    Model models[2] = {Model(on_fake_device, &streams[0]), Model(on_fake_device, &streams[1])};
    std::optional<DistributedOptimizer<Model>> optimizers[2];  // they would wait for their streams
    std::optional<Error> error;
    const auto job = [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        auto& model = models[rank];
        auto& optimizer = optimizers[rank].emplace(model, model.parameters(),
                                                   options_on(session, "net", streams[rank].ref()));
        if (rank == 1) {
            error = error_of([&] { train(session, model, optimizer, 2); });
        } else {
            train(session, model, optimizer, 1);
            throw std::runtime_error("mine");
        }
    };
    CHECK_THROWS_WITH(run_ranks(2, job), "mine");
    CHECK(error.has_value());
}
