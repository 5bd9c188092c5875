// dlib's trainer with solvers of ours, on every rank of an mpirun job, against one process.
#include <guozhuang/dlib.hpp>
#include <guozhuang/guozhuang.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <sstream>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

using Sample = ::dlib::matrix<float, 4, 1>;
using Samples = std::vector<Sample>;
using Labels = std::vector<unsigned long>;
using Net =
    ::dlib::loss_multiclass_log<::dlib::fc<3, ::dlib::relu<::dlib::fc<8, ::dlib::input<Sample>>>>>;
using NormNet =
    ::dlib::loss_multiclass_log<::dlib::fc<3, ::dlib::bn_fc<::dlib::fc<8, ::dlib::input<Sample>>>>>;
using Sgd = ::dlib::sgd;
using Solver = guozhuang::dlib::DistributedSolver<Sgd>;

constexpr std::size_t batch_size = 24;  // a multiple of 1 to 4

struct Batch {
    Samples samples;
    Labels labels;
};

/// The samples first, first + stride ... of the batch.
Batch batch_of(int number, int first, int stride) {
    Batch batch;
    for (auto i = static_cast<std::size_t>(first); i < batch_size;
         i += static_cast<std::size_t>(stride)) {
        Sample sample;
        for (long k = 0; k < sample.size(); ++k)
            sample(k) = std::sin(static_cast<float>((number + 3) * (k + 2)) * 0.7F +
                                 static_cast<float>(i) * 1.3F);
        batch.samples.push_back(sample);
        batch.labels.push_back(i % 3);
    }
    return batch;
}

/// A net that has its parameters, which depend on `start` alone.
template <class N = Net>
N net_of(int start) {
    N net;
    net(batch_of(0, 0, 1).samples);
    int number = start;
    ::dlib::visit_layer_parameters(net, [&](::dlib::tensor& tensor) {
        for (auto& value : tensor) value = 0.5F * std::sin(static_cast<float>(++number));
    });
    return net;
}

template <class N>
std::vector<float> values_of(N& net) {
    std::vector<float> values;
    ::dlib::visit_layer_parameters(net, [&](::dlib::tensor& tensor) {
        values.insert(values.end(), tensor.begin(), tensor.end());
    });
    return values;
}

template <class Trainer>
void train(Trainer& trainer, int steps, int first = 0, int stride = 1) {
    for (int step = 0; step < steps; ++step) {
        const auto batch = batch_of(step, first, stride);
        trainer.train_one_step(batch.samples, batch.labels);
    }
    trainer.get_net();
}

double distance(const std::vector<float>& one, const std::vector<float>& other) {
    double greatest = one.size() == other.size() ? 0 : INFINITY;
    for (std::size_t i = 0; i < one.size() && greatest < INFINITY; ++i)
        greatest = std::max(greatest, std::abs(static_cast<double>(one[i]) - other[i]));
    return greatest;
}

/// The error that the trainer's thread has ended with, which the trainer throws some time later.
template <class Trainer>
std::string error_of_training(Trainer& trainer, const Session& session) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    try {
        train(trainer, 1, session.rank(), session.size());
        while (std::chrono::steady_clock::now() < deadline) trainer.get_net();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

void expect_in(Report& report, const std::string& text, const std::string& error) {
    report.expect(error.find(text) != std::string::npos, text_of("no '", text, "' in: ", error));
}

}  // namespace

TEST_CASE("dlib's trainer on many ranks is that of one process with the whole batch") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of(session.rank() == 0 ? 1 : 50);
              auto alone = net_of(1);
              guozhuang::dlib::broadcast_net(net);
              const Solver solver(net, Sgd(0.001F, 0.9F));
              ::dlib::dnn_trainer<Net, Solver> trainer(net, solver);
              ::dlib::dnn_trainer<Net, Sgd> trainer_alone(alone, Sgd(0.001F, 0.9F));
              trainer.set_learning_rate(0.1);
              trainer_alone.set_learning_rate(0.1);
              auto start = net_of(1);
              report.expect(values_of(net) == values_of(start), "root's values");
              train(trainer, 12, session.rank(), session.size());
              train(trainer_alone, 12);
              report.expect(distance(values_of(net), values_of(start)) > 0.01, "it has trained");
              const auto off = distance(values_of(net), values_of(alone));
              report.expect(off < 1e-5, text_of("as in one process, but for ", off));
              const auto values = values_of(net);
              report.same_everywhere("values", std::as_bytes(std::span(values)));
          }) == "");
}

TEST_CASE("ranks whose trainers have other learning rates step with their mean") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of(1);
              const Solver solver(net, Sgd());
              report.expect(solver.learning_rate() == 0, "none before the first step");
              ::dlib::dnn_trainer<Net, Solver> trainer(net, solver);
              trainer.set_learning_rate(0.01 * (1 + session.rank()));
              train(trainer, 3, session.rank(), session.size());
              const double mean = 0.01 * (1 + session.size()) / 2;
              report.expect(std::abs(solver.learning_rate() - mean) < 1e-7, "the mean");
              const auto values = values_of(net);
              report.same_everywhere("values", std::as_bytes(std::span(values)));
          }) == "");
}

TEST_CASE("trainers of two nets may step in any order, if their solvers have names") {
    CHECK(problems_here([](Session& session, Report& report) {
              using Trainer = ::dlib::dnn_trainer<Net, Solver>;
              auto net = net_of(1), other = net_of(2);
              const Solver solver(net, Sgd(), {.name = "one"});
              const Solver other_solver(other, Sgd(), {.name = "other"});
              Trainer trainer(net, solver), other_trainer(other, other_solver);
              trainer.set_learning_rate(0.01);
              other_trainer.set_learning_rate(0.02);
              std::array<Trainer*, 2> order{&trainer, &other_trainer};
              if (session.rank() % 2 == 0) std::ranges::reverse(order);
              const auto batch = batch_of(0, session.rank(), session.size());
              for (auto* const each : order) each->train_one_step(batch.samples, batch.labels);
              for (auto* const each : order) each->get_net();
              report.expect(std::abs(solver.learning_rate() - 0.01) < 1e-7, "its own rate");
              report.expect(std::abs(other_solver.learning_rate() - 0.02) < 1e-7, "the other's");
          }) == "");
}

TEST_CASE("rates are averaged whatever the gradients are; a frozen layer does not mix steps up") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of(1);
              auto alone = net_of(1);
              const Solver solver(net, Sgd(0, 0), {.op = ReduceOp::sum, .gradient_scale = 0.5});
              ::dlib::dnn_trainer<Net, Solver> trainer(net, solver);
              ::dlib::dnn_trainer<Net, Sgd> trainer_alone(alone, Sgd(0, 0));
              trainer.set_learning_rate(0.02 / session.size());
              trainer_alone.set_learning_rate(0.01);
              for (const double multiplier : {1.0, 0.0, 1.0}) {  // of the layer that steps first
                  ::dlib::layer<1>(net).layer_details().set_learning_rate_multiplier(multiplier);
                  ::dlib::layer<1>(alone).layer_details().set_learning_rate_multiplier(multiplier);
                  train(trainer, 2, session.rank(), session.size());
                  train(trainer_alone, 2);
              }
              report.expect(std::abs(solver.learning_rate() - 0.02 / session.size()) < 1e-7,
                            "rate");
              const auto off = distance(values_of(net), values_of(alone));
              report.expect(off < 1e-5, text_of("as in one process, but for ", off));
              expect_error(report, ErrorCode::invalid_argument, {"backward_passes_per_step"},
                           [&] { Solver(net, Sgd(), {.backward_passes_per_step = 2}); });
          }) == "");
}

// Also the first batch, before which no solver has seen the net's gradients.
TEST_CASE("a batch that one rank discards is left out on all") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of(1);
              auto alone = net_of(1);
              Solver solver(net, Sgd(0, 0.9F));
              ::dlib::dnn_trainer<Net, Solver> trainer(net, solver);
              ::dlib::dnn_trainer<Net, Sgd> trainer_alone(alone, Sgd(0, 0.9F));
              for (const bool is_discarded : {true, false, true, false, false}) {
                  if (is_discarded && session.rank() == session.size() - 1)
                      solver.discard(trainer, "an image could not be read");
                  else
                      train(trainer, 1, session.rank(), session.size());
                  if (!is_discarded) train(trainer_alone, 1);
                  const auto off = distance(values_of(net), values_of(alone));
                  report.expect(off < 1e-5, text_of("as in one process, but for ", off));
              }
              Solver without;
              expect_error(report, ErrorCode::invalid_argument, {"without a net"},
                           [&] { without.discard(trainer, "nothing"); });
          }) == "");
}

TEST_CASE("a net is broadcast with what is no parameter, and needs parameters") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of<NormNet>(1);
              ::dlib::dnn_trainer<NormNet> trainer(net);
              train(trainer, 3 + session.rank());
              guozhuang::dlib::broadcast_net(net, session.size() - 1);
              std::ostringstream bytes;
              serialize(net, bytes);
              report.same_everywhere("net", bytes.str());
              Net untouched;
              expect_error(report, ErrorCode::invalid_argument, {"has no parameters yet", "rank 0"},
                           [&] { guozhuang::dlib::broadcast_net(untouched); });
              if (session.rank() == 0) untouched = net_of(3);
              guozhuang::dlib::broadcast_net(untouched);  // to ranks that have none
              auto same = net_of(3);
              report.expect(values_of(untouched) == values_of(same), "made from root's");
          }) == "");
}

TEST_CASE("a trainer of another net, or of one whose memory has moved, is an error") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of(1);
              auto other = net_of(1);
              const Solver solver(net, Sgd());
              using Trainer = ::dlib::dnn_trainer<Net, Solver>;
              Trainer of_other(other, solver);
              expect_in(report, "another net", error_of_training(of_other, session));
              Trainer without(net, Solver());
              expect_in(report, "without a net", error_of_training(without, session));
              Trainer moved(net, Solver(net, Sgd()));
              train(moved, 1);
              net = net_of(1);
              expect_in(report, "memory has moved", error_of_training(moved, session));
              barrier();
          }) == "");
}

TEST_CASE("nets that start from different values are told so") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.size() == 1) return;
              auto net = net_of(session.rank() + 1);
              const Solver solver(net, Sgd());
              ::dlib::dnn_trainer<Net, Solver> trainer(net, solver);
              const auto error = error_of_training(trainer, session);
              expect_in(report, "'layer 0'", error);
              expect_in(report, "values (broadcast_parameters makes them the same; ", error);
          }) == "");
}

TEST_CASE("nets that start from different values may, if their solver does not check them") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto net = net_of(session.rank() + 1);
              const auto before = values_of(net);
              const Solver solver(net, Sgd(0, 0), {.check_values = false});
              ::dlib::dnn_trainer<Net, Solver> trainer(net, solver);
              trainer.set_learning_rate(0.5);
              train(trainer, 1, session.rank(), session.size());
              auto step = values_of(net);
              std::ranges::transform(step, before, step.begin(), std::minus());
              const auto largest = *std::ranges::max_element(step);
              report.expect(largest > 1e-3, text_of("a step of at most ", largest));
              auto mean = step;
              allreduce(mean, {.op = ReduceOp::average});
              const auto off = distance(step, mean);
              report.expect(off < 1e-5, text_of("the same step on all ranks, but for ", off));
          }) == "");
}

TEST_CASE("a solver's file is that of the solver it wraps") {
    auto net = net_of(1);
    const Solver solver(net, Sgd(0.25F, 0.5F));
    std::ostringstream wrapped, distributed;
    serialize(solver, distributed);
    serialize(solver.wrapped(), wrapped);
    CHECK(distributed.str() == wrapped.str());
    std::istringstream in(distributed.str());
    Solver read;
    deserialize(read, in);
    CHECK(read.wrapped().get_weight_decay() == 0.25F);
}
