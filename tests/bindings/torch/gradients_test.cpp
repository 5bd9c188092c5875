// Where gradients lie, when they are sent, and the sparse ones.
#include "bindings/torch/models.hpp"

#include <algorithm>
#include <vector>

using namespace models;

namespace {

torch::optim::SGD plain_sgd_of(torch::nn::Module& module) {
    return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1));
}

/// A table of words and a layer; with `sparse` a gradient has only the rows of the words that were
/// used. With `also_dense` the layer shares the table.
struct WordsImpl : torch::nn::Module {
    explicit WordsImpl(bool sparse, bool also_dense = false) : shares(also_dense) {
        torch::manual_seed(3);
        table = register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(sparse)));
        layer = register_module("layer", torch::nn::Linear(4, 3));
        to(at::kDouble);
    }
    Tensor forward(const Tensor& words) {
        auto vectors = table->forward(words);
        if (shares) vectors = vectors + table->weight.sum(0);
        return layer->forward(vectors);
    }
    bool shares;
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Words);

Batch words_of(Session& session, std::int64_t step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    const auto count = session.size() * batch_of_rank;
    return {torch::randint(10, {count}, at::kLong), torch::randint(3, {count}, at::kLong)};
}

void words_train_as_one_process(Session& session, Report& report, bool sparse, bool also_dense) {
    Words words(sparse, also_dense), alone(false, also_dense);
    auto sgd = plain_sgd_of(*words), sgd_alone = plain_sgd_of(*alone);
    gz::OptimizerOptions options;
    if (also_dense) {  // the same average, another way
        options.op = gz::ReduceOp::sum;
        options.gradient_scale = 1.0 / session.size();
    }
    gz::torch::DistributedOptimizer optimizer(sgd, *words, options);
    for (std::int64_t step = 0; step < 4; ++step) {
        const auto batch = words_of(session, step);
        clear_gradients(*words, Cleared::to_none);
        clear_gradients(*alone, Cleared::to_none);
        loss_of(*alone, batch).backward();
        sgd_alone.step();
        loss_of(*words, batch.share(session)).backward();
        optimizer.step();
        report.expect(words->table->weight.grad().is_sparse() == sparse,
                      sparse ? "the gradient has become dense" : "the gradient is sparse");
        expect_same(report, *words, *alone, text_of("step ", step));
    }
}

/// How many allreduces of a number it takes until the gradient holds `expected` on all ranks, at
/// most 1000: what has been sent before moves meanwhile.
int rounds_until(const Tensor& gradient, const Tensor& expected) {
    for (int rounds = 1; rounds <= 1000; ++rounds) {
        int there = torch::allclose(gradient, expected) ? 1 : 0;
        gz::allreduce(there, {.op = gz::ReduceOp::min});
        if (there != 0) return rounds;
    }
    return 0;
}

}  // namespace

TEST_CASE("gradients are views of one memory, whatever clears them") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7);
              torch::optim::SGD sgd(parameters_of(*net), torch::optim::SGDOptions(0.1));
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              std::vector<const void*> first;
              for (const auto cleared : {Cleared::to_zero, Cleared::to_none, Cleared::to_zero}) {
                  clear_gradients(*net, cleared);
                  loss_of(*net, batch_of(session, 1).share(session)).backward();
                  optimizer.step();
                  std::vector<const void*> now;
                  for (const auto& parameter : net->parameters())
                      if (parameter.grad().defined()) now.push_back(parameter.grad().data_ptr());
                  if (first.empty()) first = now;
                  report.expect(now == first, "gradients are elsewhere");
              }
              std::ranges::sort(first);
              const auto distance =
                  static_cast<const char*>(first.back()) - static_cast<const char*>(first.front());
              report.expect(distance < 16 * 1024, "gradients are far from each other");
          }) == "");
}

// The gradient of the last layer holds its average while backward has not come to the first one.
TEST_CASE("bundles fly while backward runs") {
    CHECK(problems_here([](Session& session, Report& report) {
              torch::manual_seed(5);
              torch::nn::Linear first(4, 4), last(4, 1);
              torch::nn::Sequential model(first, last);
              auto sgd = plain_sgd_of(*model);
              gz::torch::DistributedOptimizer optimizer(
                  sgd, *model, {.bundle_bytes = 1, .first_bundle_bytes = 1});
              const auto input = torch::ones({1, 4});
              for (int step = 0; step < 3; ++step) {
                  clear_gradients(*model, Cleared::to_none);
                  auto hidden = first->forward(input);
                  int rounds = 0;
                  hidden.register_hook([&](const Tensor&) {
                      const auto mean = (session.size() + 1) / 2.0;  // of 1, 2, ...
                      rounds = rounds_until(last->bias.grad(), torch::full({1}, mean));
                      report.expect(!first->weight.grad().defined(), "backward is further");
                  });
                  (last->forward(hidden).sum() * (session.rank() + 1)).backward();
                  report.expect(rounds > 0, "the gradient of the last layer is not reduced yet");
                  optimizer.step();
              }
          }) == "");
}

TEST_CASE("sparse gradients: those of a layer that says so stay sparse") {
    for (const bool sparse : {false, true})
        CHECK(problems_here([&](Session& session, Report& report) {
                  words_train_as_one_process(session, report, sparse, false);
              }) == "");
}

TEST_CASE("a table with a sparse gradient that another layer uses, too; sums with a scale") {
    CHECK(problems_here([](Session& session, Report& report) {
              words_train_as_one_process(session, report, true, true);
          }) == "");
}

TEST_CASE("a sparse gradient that only some ranks have, or none") {
    CHECK(problems_here([](Session& session, Report& report) {
              Words words(true), alone(false);
              auto sgd = plain_sgd_of(*words), sgd_alone = plain_sgd_of(*alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *words);
              for (const int users : {1, 0, 1}) {
                  clear_gradients(*words, Cleared::to_none);
                  clear_gradients(*alone, Cleared::to_none);
                  const auto loss = [&](Words& model, int rank) {
                      const auto bias = model->layer->bias.sum() * (rank + 1.0);
                      const auto used = torch::tensor({rank, rank + 1}, at::kLong);
                      return rank < users ? bias + model->table->forward(used).sum() : bias;
                  };
                  auto mean = torch::zeros({}, at::kDouble);
                  for (int rank = 0; rank < session.size(); ++rank)
                      mean = mean + loss(alone, rank) / session.size();
                  mean.backward();
                  sgd_alone.step();
                  loss(words, session.rank()).backward();
                  optimizer.step();
                  expect_same(report, *words, *alone, text_of(users, " users"));
              }
          }) == "");
}

TEST_CASE("a sparse gradient that no layer has announced becomes dense") {
    CHECK(problems_here([](Session& session, Report& report) {
              torch::nn::Module module;
              auto table = module.register_parameter("table", torch::ones({6, 2}));
              auto sgd = plain_sgd_of(module);
              gz::torch::DistributedOptimizer optimizer(sgd, module);
              for (int step = 0; step < 2; ++step) {
                  clear_gradients(module, Cleared::to_none);
                  at::embedding(table, torch::tensor({session.rank()}, at::kLong), -1, false, true)
                      .sum()
                      .backward();
                  optimizer.step();
                  auto expected = torch::zeros({6, 2});
                  expected.slice(0, 0, session.size()).fill_(1.0 / session.size());
                  report.expect(torch::allclose(table.grad(), expected), "another gradient");
              }
          }) == "");
}

TEST_CASE("a tensor is seen where it is, if its elements lie there in order") {
    const auto tensor = torch::zeros({2, 3, 4, 5});
    const auto last = tensor.contiguous(at::MemoryFormat::ChannelsLast);
    CHECK(gz::torch::view_of(tensor, "rows").shape == gz::Shape{2, 3, 4, 5});
    CHECK(gz::torch::view_of(last.permute({0, 2, 3, 1}), "rows").data == last.data_ptr());
    const auto refusal = [](const Tensor& odd) {
        return error_of([&] { gz::torch::view_of(odd, "odd"); });
    };
    CHECK_THAT(refusal(last), Catch::Matchers::Contains("'odd' is permuted in memory"));
    CHECK_THAT(refusal(torch::_neg_view(tensor)), Catch::Matchers::Contains("'odd' is negated"));
    CHECK_THAT(refusal(tensor.to_sparse()), Catch::Matchers::Contains("'odd' is sparse"));
}

TEST_CASE("gradients that are negated only when they are read") {
    CHECK(problems_here([](Session& session, Report& report) {
              torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
              torch::nn::Linear layer(2, 2);
              table->weight.register_hook([](const Tensor& gradient) {
                  const auto rows = gradient.coalesce();
                  return at::_sparse_coo_tensor_unsafe(
                      rows.indices(), torch::_neg_view(rows.values()), rows.sizes());
              });
              layer->weight.register_hook(
                  [](const Tensor& gradient) { return torch::_neg_view(gradient); });
              torch::nn::Sequential model(table, layer);
              auto sgd = plain_sgd_of(*model);
              gz::torch::DistributedOptimizer optimizer(sgd, *model);
              const auto mean = (session.size() + 1) / 2.0;  // of 1, 2, ...
              const auto factor = session.rank() + 1.0;
              ((table->forward(torch::tensor({0, 1}, at::kLong)).sum() + layer->weight.sum()) *
               factor)
                  .backward();
              optimizer.step();
              report.expect(torch::allclose(layer->weight.grad(), torch::full({2, 2}, -mean)),
                            "another dense gradient");
              report.expect(torch::allclose(table->weight.grad().to_dense().slice(0, 0, 2),
                                            torch::full({2, 2}, -mean)),
                            "another sparse gradient");
          }) == "");
}

TEST_CASE("who has used a parameter is known, however small the gradients become") {
    CHECK(problems_here([](Session& session, Report& report) {
              torch::nn::Module module;
              auto always = module.register_parameter("always", torch::ones({3}).to(at::kHalf));
              auto last = module.register_parameter("last", torch::ones({3}).to(at::kHalf));
              auto never = module.register_parameter("never", torch::ones({3}).to(at::kHalf));
              auto sgd = plain_sgd_of(module);
              gz::torch::DistributedOptimizer optimizer(sgd, module, {.gradient_scale = 1e-8});
              const auto backward = [](const Tensor& parameter) {
                  parameter.view({3, 1}).backward(torch::full({3, 1}, 1000.0).to(at::kHalf));
              };
              backward(always);
              if (session.rank() == session.size() - 1) backward(last);
              optimizer.step();
              report.expect(last.grad().defined(), "no gradient where others have one");
              report.expect(!never.grad().defined(), "a gradient that no rank has");
          }) == "");
}

TEST_CASE("how gradients can be combined, sparse ones and others") {
    CHECK(problems_here([](Session&, Report& report) {
              Words sparse(true), dense(false);
              auto sgd = plain_sgd_of(*sparse), sgd_dense = plain_sgd_of(*dense);
              expect_error(report, "invalid_argument: 'table.weight'", "no 'adasum'", [&] {
                  gz::torch::DistributedOptimizer optimizer(sgd, *sparse,
                                                            {.op = gz::ReduceOp::adasum});
              });
              expect_error(report, "gradients are combined by", "not by 'max'", [&] {
                  gz::torch::DistributedOptimizer optimizer(sgd_dense, *dense,
                                                            {.op = gz::ReduceOp::max});
              });
          }) == "");
}
