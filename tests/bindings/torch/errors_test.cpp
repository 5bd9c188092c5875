// Mistakes that the headers for libtorch notice: what they say, on which ranks, and that training
// goes on when they are mended.
#include "bindings/torch/models.hpp"

using namespace models;

namespace {

using torch::optim::SGD;

SGD sgd_of(torch::nn::Module& module) {
    return SGD(module.parameters(), torch::optim::SGDOptions(0.1));
}

bool is_last(Session& session) {
    return session.rank() == session.size() - 1;
}

/// Two layers, of which the first is frozen.
struct HeadImpl : torch::nn::Module {
    HeadImpl() {
        torch::manual_seed(3);
        body = register_module("body", torch::nn::Linear(3, 2));
        head = register_module("head", torch::nn::Linear(2, 1));
        for (auto& parameter : body->parameters()) parameter.requires_grad_(false);
    }
    Tensor forward(const Tensor& input) { return head->forward(body->forward(input)).sum(); }
    torch::nn::Linear body{nullptr}, head{nullptr};
};
TORCH_MODULE(Head);

Tensor input_of(Session& session) {
    return torch::full({1, 3}, session.rank() + 1.0);
}

}  // namespace

TEST_CASE("what only one rank's constructor refuses, all ranks refuse") {
    CHECK(problems_here([](Session& session, Report& report) {
              const auto last = std::to_string(session.size() - 1);
              torch::nn::Linear layer(4, 4);
              if (is_last(session)) layer->weight.set_data(torch::zeros({4, 4}, at::kComplexFloat));
              auto sgd = sgd_of(*layer);
              const auto prefix = is_last(session)
                                      ? "invalid_argument: 'weight'"
                                      : "invalid_argument: rank " + last + ": 'weight'";
              expect_error(report, prefix, "ComplexFloat",
                           [&] { gz::torch::DistributedOptimizer optimizer(sgd, *layer); });
              expect_error(report, prefix, "ComplexFloat",
                           [&] { gz::torch::DistributedDataParallel parallel(layer); });
              Head head(is_last(session) ? Head(nullptr) : Head());
              expect_error(report, "invalid_argument: ", "there is no module",
                           [&] { gz::torch::DistributedDataParallel parallel(head); });
              torch::nn::Module module;
              module.register_buffer("odd", is_last(session) ? torch::zeros({4, 2}).slice(1, 0, 1)
                                                             : torch::zeros({4, 1}));
              expect_error(report, "invalid_argument: ", "'odd' has gaps",
                           [&] { gz::torch::broadcast_parameters(module); });
          }) == "");
}

TEST_CASE("a parameter that requires a gradient on one rank only is named, on all ranks") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.size() == 1) return;
              Head model;
              if (is_last(session)) model->body->weight.requires_grad_(true);
              auto sgd = sgd_of(*model);
              const auto rank = std::to_string(session.size() - 1);
              const auto make = [&] { gz::torch::DistributedOptimizer optimizer(sgd, *model); };
              expect_error(report, "mismatch: parameters that require a gradient differ: ",
                           "[2, 3], strides [3, 1] on rank " + rank, make);
              expect_error(report, "on rank 0; 'body.weight' of ", "on rank " + rank,
                           [&] { gz::torch::DistributedDataParallel parallel(model); });
              model->body->weight.requires_grad_(false);
              make();
          }) == "");
}

/// Where one rank, or all, have changed what is trained, a step fails on all ranks, and names the
/// parameter; when the change is taken back they go on.
template <class Change>
void expect_fixed(const std::string& text, const Change& change) {
    for (const bool on_all : {true, false})
        CHECK(
            problems_here([&](Session& session, Report& report) {
                Head model, alone;
                auto sgd = sgd_of(*model);
                gz::torch::DistributedOptimizer optimizer(sgd, *model);
                const auto step = [&] {
                    optimizer.zero_grad();
                    model->forward(input_of(session)).backward();
                    optimizer.step();
                };
                const bool changes = on_all || is_last(session);
                if (changes) change(*model, true);
                const auto culprit = on_all ? "" : std::to_string(session.size() - 1);
                expect_error(report, changes ? "invalid_argument: '" : "by rank " + culprit + ": '",
                             text, step);
                for (const auto& item : model->named_parameters())
                    report.expect(torch::equal(item.value(), alone->named_parameters()[item.key()]),
                                  "a step with the batch that failed");
                if (changes) change(*model, false);
                step();
                report.expect(!torch::equal(model->head->weight, alone->head->weight),
                              "no step with the next batch");
            }) == "");
}

TEST_CASE("a parameter that begins to require a gradient later is named, on all ranks") {
    expect_fixed("'body.weight' was added, or has begun",
                 [](HeadImpl& model, bool changes) { model.body->weight.requires_grad_(changes); });
}

TEST_CASE("so is one that ceases to require a gradient") {
    expect_fixed("'head.bias' was removed, or has ceased",
                 [](HeadImpl& model, bool changes) { model.head->bias.requires_grad_(!changes); });
}

TEST_CASE(
    "DistributedDataParallel names a parameter that begins to require a gradient, or is new") {
    CHECK(problems_here([&](Session& session, Report& report) {
              Head model;
              gz::torch::DistributedDataParallel parallel(model);
              const auto backward = [&] { parallel.forward(input_of(session)).backward(); };
              backward();
              model->body->bias.requires_grad_(true);
              expect_error(report, "invalid_argument: 'body.bias'", "", backward);
              model->body->bias.requires_grad_(false);
              backward();
              model->register_parameter("late", torch::zeros({1}));
              expect_error(report, "invalid_argument: 'late'", "", backward);
          }) == "");
}

TEST_CASE("a sum needs gradients that are cleared: those that are not are named") {
    for (const bool is_unused : {false, true})
        CHECK(problems_here([&](Session& session, Report& report) {
                  torch::nn::Linear layer(3, 1);
                  auto sgd = sgd_of(*layer);
                  gz::torch::DistributedOptimizer optimizer(sgd, *layer, {.op = gz::ReduceOp::sum});
                  const auto backward = [&](bool uses_bias) {
                      auto loss = layer->weight.sum() * (session.rank() + 1.0);
                      (uses_bias ? loss + layer->bias.sum() : loss).backward();
                  };
                  for (int step = 0; step < 2; ++step) {
                      clear_gradients(*layer, step == 0 ? Cleared::to_none : Cleared::to_zero);
                      backward(true);
                      optimizer.step();
                  }
                  if (is_unused) layer->weight.mutable_grad().zero_();
                  backward(!is_unused);
                  expect_error(report,
                               is_unused ? "invalid_argument: 'bias'" : "invalid_argument: ",
                               "call zero_grad() after each step", [&] { optimizer.step(); });
                  for (const auto cleared : {Cleared::to_zero, Cleared::to_none}) {
                      {  // what accumulates before the gradients are cleared does no harm
                          const auto guard = optimizer.no_sync();
                          backward(true);
                      }
                      clear_gradients(*layer, cleared);
                      backward(true);
                      optimizer.step();
                      const auto sum = session.size() * (session.size() + 1) / 2.0;
                      report.expect(torch::allclose(layer->weight.grad(), torch::full({1, 3}, sum)),
                                    "another sum");
                  }
              }) == "");
}

TEST_CASE("values of a parameter with a sparse gradient that differ are named at the first step") {
    for (const bool compares : {true, false})
        CHECK(problems_here([&](Session& session, Report& report) {
                  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
                  torch::nn::Sequential model(table, torch::nn::Linear(2, 1));
                  {
                      const torch::NoGradGuard no_graph;
                      for (auto& parameter : model->parameters()) parameter.fill_(1);
                      if (is_last(session)) table->weight[3][1] = session.size();
                  }
                  auto sgd = sgd_of(*model);
                  gz::torch::DistributedOptimizer optimizer(sgd, *model,
                                                            {.check_values = compares});
                  const auto step = [&] {
                      optimizer.zero_grad();
                      model->forward(torch::tensor({0, 3}, at::kLong)).sum().backward();
                      optimizer.step();
                  };
                  if (!compares || session.size() == 1) return step();
                  expect_error(report, "mismatch: ", "'0.weight': values (broadcast_", step);
                  gz::torch::broadcast_parameters(*model);
                  step();
              }) == "");
}
