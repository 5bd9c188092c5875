// Data-parallel training, on ranks that are processes.
#include "support/cases/training_cases.hpp"

#include "support/cases/batch_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("one step of gradient descent: the wrapped optimizer sees the mean gradient") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<double> weights{10, 20}, gradients{2.0 * rank, 1};
    struct Descent {
        std::vector<double>& weights;
        const std::vector<double>& gradients;
        void step() {
            for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= gradients[i];
        }
    } descent{weights, gradients};
    DistributedOptimizer optimizer(descent,
                                   {{"weights", TensorView(weights), TensorView(gradients)}});
    CHECK(optimizer.step());
    CHECK(gradients == std::vector<double>{ranks - 1.0, 1});  // of 0, 2, 4, ... and of 1, 1, 1, ...
    CHECK(weights == std::vector<double>{10 - (ranks - 1.0), 19});
}

// The cases of training_cases.hpp: a linear model, trained and compared with the same in one
// process without the library; what is broadcast, checked and averaged besides.
TEST_CASE("training on any number of ranks") {
    for (const auto& body : all_training_cases) CHECK(problems_here(body) == "");
}

// The cases of batch_cases.hpp: batches that a rank discards, or in which it throws or stops.
TEST_CASE("batches that fail on one rank fail on all, and all go on") {
    for (const auto& body : all_batch_cases) CHECK(problems_here(body) == "");
}

TEST_CASE("two ranks with a sample each train as one with both does, exactly") {
    auto& session = Session::current();
    if (session.size() > 2) GUOZHUANG_SKIP("two samples are for two ranks at most");
    CHECK(train(session, two_samples, 1, 100, 1e-3) == train_alone(two_samples, 100, 1e-3));
}

TEST_CASE("samplers of processes share the data set out") {
    CHECK(problems_here([](Session& session, Report& report) {
              const DistributedSampler sampler(101, {.seed = 5, .tail = Tail::uneven});
              std::vector<std::int64_t> own(sampler.begin(), sampler.end());
              auto all = all_gather(own).as<std::int64_t>();
              report.same_everywhere("order", std::as_bytes(std::span(all)));
              std::ranges::sort(all);
              std::vector<std::int64_t> expected(101);
              std::iota(expected.begin(), expected.end(), 0);
              report.expect(all == expected, "disjoint, and together the data set");
              report.expect(
                  steps_per_epoch(101, 1) == (101 + static_cast<std::size_t>(session.size()) - 1) /
                                                 static_cast<std::size_t>(session.size()),
                  "steps");
          }) == "");
}
