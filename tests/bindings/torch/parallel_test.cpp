// guozhuangtorch::DistributedDataParallel, compared with one process that has the whole batch.
#include "bindings/torch/models.hpp"

#include <chrono>
#include <future>
#include <thread>
#include <vector>

using namespace models;

namespace {

using torch::optim::Adam;

/// A BatchNorm, whose statistics are buffers.
struct NormedImpl : torch::nn::Module {
    NormedImpl() {
        norm = register_module("norm", torch::nn::BatchNorm1d(3));
        layer = register_module("layer", torch::nn::Linear(3, 2));
    }
    Tensor forward(const Tensor& input) { return layer->forward(norm->forward(input)); }
    torch::nn::BatchNorm1d norm{nullptr};
    torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Normed);

/// A layer with a complex buffer, by whose phase it turns its outputs.
struct TurningImpl : torch::nn::Module {
    TurningImpl() {
        torch::manual_seed(3);
        layer = register_module("layer", torch::nn::Linear(2, 2));
        phase = register_buffer("phase", torch::zeros({1}, at::kComplexFloat));
    }
    Tensor forward(const Tensor& input) { return (layer->forward(input) * at::imag(phase)).sum(); }
    torch::nn::Linear layer{nullptr};
    Tensor phase;
};
TORCH_MODULE(Turning);

/// Computes its value again in backward, by a backward of its own: a checkpoint.
struct Again : torch::autograd::Function<Again> {
    static inline std::function<Tensor(const Tensor&)> compute;

    static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input) {
        context->save_for_backward({input});
        return compute(input);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& outer) {
        const torch::AutoGradMode with_graph(true);
        const auto input = context->get_saved_variables()[0].detach().requires_grad_();
        compute(input).backward(outer[0]);
        return {input.grad()};
    }
};

}  // namespace

// Each rank begins with parameters of its own, which are those of the first rank then.
TEST_CASE("any optimizer, with the averages that backward leaves") {
    for (const auto cleared : {Cleared::to_zero, Cleared::to_none})
        CHECK(problems_here([&](Session& session, Report& report) {
                  Net net(7 + static_cast<std::uint64_t>(session.rank())), alone(7);
                  gz::torch::DistributedDataParallel parallel(net);
                  Adam adam(parameters_of(*net), torch::optim::AdamOptions(0.01));
                  Adam adam_alone(parameters_of(*alone), torch::optim::AdamOptions(0.01));
                  for (std::uint64_t step = 0; step < 5; ++step) {
                      const auto batch = batch_of(session, step, step % 2 == 0);
                      clear_gradients(*net, cleared);
                      clear_gradients(*alone, cleared);
                      loss_of(*alone, batch).backward();
                      adam_alone.step();
                      loss_of(parallel, batch.share(session)).backward();
                      if (step == 0) expect_same(report, *net, *Net(net), "after backward");
                      adam.step();
                      expect_same(report, *net, *alone, text_of("step ", step));
                  }
              }) == "");
}

TEST_CASE("no_sync: gradients of several passes are averaged once") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), alone(7);
              gz::torch::DistributedDataParallel parallel(net);
              for (std::uint64_t step = 0; step < 3; ++step) {
                  const auto first = batch_of(session, 2 * step, true);
                  const auto second = batch_of(session, 2 * step + 1, false);
                  clear_gradients(*net, Cleared::to_none);
                  clear_gradients(*alone, Cleared::to_none);
                  const auto before = gz::traffic(&session).bytes;
                  {
                      const auto guard = parallel.no_sync();
                      loss_of(parallel, first.share(session)).backward();
                  }
                  report.expect(gz::traffic(&session).bytes == before,
                                "no_sync() has sent something");
                  loss_of(parallel, second.share(session)).backward();
                  loss_of(*alone, first).backward();
                  loss_of(*alone, second).backward();
                  expect_same(report, *net, *alone, text_of("step ", step));
              }
          }) == "");
}

TEST_CASE("two backward passes of one batch, each of which is averaged") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), alone(7);
              gz::torch::DistributedDataParallel parallel(net);
              for (std::uint64_t pass = 0; pass < 2; ++pass) {
                  const auto batch = batch_of(session, pass, pass == 0);
                  loss_of(parallel, batch.share(session)).backward();
                  loss_of(*alone, batch).backward();
              }
              expect_same(report, *net, *alone, "both");
          }) == "");
}

TEST_CASE("two modules in one backward, whose gradients come in another order on other ranks") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net first(7), second(8), first_alone(7), second_alone(8);
              gz::torch::DistributedDataParallel parallel(first), other(second);
              for (std::uint64_t step = 0; step < 3; ++step) {
                  const auto batch = batch_of(session, step);
                  for (auto* net : {&first, &second, &first_alone, &second_alone})
                      clear_gradients(**net, Cleared::to_none);
                  (loss_of(*first_alone, batch) + loss_of(*second_alone, batch)).backward();
                  std::vector<Tensor> losses;  // backward begins with what forward has done last
                  if (session.rank() % 2 == 0)
                      losses.push_back(loss_of(parallel, batch.share(session)));
                  losses.push_back(loss_of(other, batch.share(session)));
                  if (session.rank() % 2 != 0)
                      losses.push_back(loss_of(parallel, batch.share(session)));
                  (losses[0] + losses[1]).backward();
                  expect_same(report, *first, *first_alone, text_of("first, step ", step));
                  expect_same(report, *second, *second_alone, text_of("second, step ", step));
              }
          }) == "");
}

// Gradients are sent for both before a rank gathers the rows of one, even if it comes last.
TEST_CASE("two modules in one backward, of which one has a sparse gradient") {
    CHECK(problems_here([](Session& session, Report& report) {
              torch::nn::Embedding rows(torch::nn::EmbeddingOptions(4, 2).sparse(true));
              torch::nn::Linear layer(2, 1);
              gz::torch::DistributedDataParallel sparse(rows);
              gz::torch::DistributedDataParallel dense(layer);
              for (int step = 0; step < 2 * session.size(); ++step) {
                  clear_gradients(*rows, Cleared::to_none);
                  clear_gradients(*layer, Cleared::to_none);
                  const bool is_late = session.rank() == step % session.size();
                  std::vector<Tensor> losses;  // backward begins with what forward has done last
                  const auto use_rows = [&] {
                      losses.push_back(sparse.forward(torch::tensor({1, 2})).sum());
                  };
                  if (!is_late) use_rows();
                  losses.push_back(dense.forward(torch::ones({1, 2})).sum());
                  if (is_late) use_rows();
                  if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  (losses[0] + losses[1]).backward();
                  report.expect(layer->weight.grad().eq(1).all().item<bool>(), "dense");
                  report.expect(rows->weight.grad().to_dense()[1][0].item<float>() == 1, "sparse");
              }
          }) == "");
}

// Whichever of the modules fails: the other one's batch has ended too.
TEST_CASE("of two modules in one backward, one whose batch is discarded") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.size() == 1) return;
              Net first(7), second(8), first_alone(7), second_alone(8);
              gz::torch::DistributedDataParallel parallel(first), other(second);
              const auto batch = batch_of(session, 1);
              const auto backward = [&] {
                  const auto loss = loss_of(parallel, batch.share(session));
                  (loss + loss_of(other, batch.share(session))).backward();
              };
              const bool discards = session.rank() == 0;
              if (discards) first->frozen->weight.requires_grad_(true);
              expect_error(report,
                           discards ? "invalid_argument: " : "discarded: ", "'frozen.weight'",
                           backward);
              if (discards) first->frozen->weight.requires_grad_(false);
              for (auto* net : {&first, &second}) clear_gradients(**net, Cleared::to_none);
              backward();
              (loss_of(*first_alone, batch) + loss_of(*second_alone, batch)).backward();
              first->frozen->weight.mutable_grad().reset();
              expect_same(report, *first, *first_alone, "first");
              expect_same(report, *second, *second_alone, "second");
          }) == "");
}

TEST_CASE("a backward within backward: averages are right, sums are refused") {
    for (const bool sums : {false, true})
        CHECK(problems_here([&](Session& session, Report& report) {
                  Net net(7), alone(7);
                  gz::torch::ParallelOptions options;
                  if (sums) options.reduction.op = gz::ReduceOp::sum;
                  gz::torch::DistributedDataParallel parallel(net, options);
                  const auto batch = batch_of(session, 1);
                  // The layer before is used once more afterwards: its gradient has two parts.
                  const auto loss_of_net = [](Net& model, const Batch& some, const auto& last) {
                      const auto images = some.inputs.detach().requires_grad_();
                      const auto hidden = model->features(images).matmul(model->tied);
                      return torch::nn::functional::cross_entropy(last(hidden), some.targets);
                  };
                  Again::compute = [&](const Tensor& hidden) {
                      return net->last->forward(hidden.matmul(net->tied));
                  };
                  loss_of_net(alone, batch, [&](const Tensor& hidden) {
                      return alone->last->forward(hidden.matmul(alone->tied));
                  }).backward();
                  const auto backward = [&] {
                      loss_of_net(net, batch.share(session), [&](const Tensor& hidden) {
                          return Again::apply(hidden);
                      }).backward();
                  };
                  if (sums) {
                      expect_error(report, "invalid_argument: ", "only a plain average", backward);
                  } else {
                      backward();
                      expect_same(report, *net, *alone, "averages");
                  }
              }) == "");
}

// Two threads, of which either may be the first on each rank.
TEST_CASE("two modules whose buffers have the same names, in forward at the same time") {
    CHECK(problems_here([](Session& session, Report& report) {
              Normed first, second;
              gz::torch::DistributedDataParallel parallel(first), other(second);
              first->norm->running_mean.fill_(session.rank() + 1);
              second->norm->running_mean.fill_(session.rank() + 10);
              for (auto* norm : {&first->norm, &second->norm}) (*norm)->options.momentum(0.0);
              const auto forward = [](auto& model) {
                  const torch::NoGradGuard no_graph;
                  for (int pass = 0; pass < 50; ++pass) model.forward(torch::ones({4, 3}));
              };
              auto beside = std::async(std::launch::async, [&] { forward(parallel); });
              forward(other);
              beside.get();
              report.expect((first->norm->running_mean == 1).all().item<bool>(), "the first");
              report.expect((second->norm->running_mean == 10).all().item<bool>(), "the second");
          }) == "");
}

TEST_CASE("a complex buffer is that of the first rank, too") {
    CHECK(problems_here([](Session& session, Report& report) {
              Turning model;
              gz::torch::DistributedDataParallel parallel(model);
              model->phase.fill_(c10::complex<float>(0, static_cast<float>(session.rank() + 2)));
              parallel.forward(torch::ones({1, 2})).backward();
              report.expect(at::imag(model->phase).item<float>() == 2, "another phase");
              report.expect(torch::allclose(model->layer->bias.grad(), torch::full({2}, 2.0)),
                            "another gradient");
          }) == "");
}

TEST_CASE("a batch of DistributedDataParallel in which backward throws is discarded") {
    for (const bool is_told : {false, true})
        CHECK(problems_here([&](Session& session, Report& report) {
                  Net net(7), alone(7);
                  gz::torch::DistributedDataParallel parallel(net);
                  const auto batch = batch_of(session, 1);
                  if (session.rank() == session.size() - 1) {
                      const auto hook = net->tied.register_hook([](const Tensor&) -> Tensor {
                          throw std::runtime_error("an image could not be read");
                      });
                      try {
                          loss_of(parallel, batch.share(session)).backward();
                          report.expect(false, "backward does not throw");
                      } catch (const std::exception& error) {
                          if (is_told) parallel.discard(error.what());
                      }
                      net->tied.remove_hook(hook);
                  } else {
                      expect_error(report, "discarded: ",
                                   is_told ? "could not be read" : "backward() has thrown",
                                   [&] { loss_of(parallel, batch.share(session)).backward(); });
                  }
                  // The next forward() of the rank that threw discards, if nobody has.
                  clear_gradients(*net, Cleared::to_none);
                  loss_of(parallel, batch.share(session)).backward();
                  loss_of(*alone, batch).backward();
                  expect_same(report, *net, *alone, "the next batch");
              }) == "");
}

TEST_CASE("buffers are those of the first rank, while the module trains") {
    for (const bool broadcasts : {true, false})
        CHECK(problems_here([&](Session& session, Report& report) {
                  Normed net;
                  gz::torch::DistributedDataParallel parallel(net,
                                                              {.broadcast_buffers = broadcasts});
                  const auto input =
                      torch::ones({4, 3}) * (session.rank() + 1) + torch::eye(4).slice(1, 0, 3);
                  for (int step = 0; step < 2; ++step) parallel.forward(input).sum().backward();
                  net->eval();
                  const auto own = net->norm->running_mean.clone();
                  parallel.forward(input);
                  report.expect(torch::equal(own, net->norm->running_mean),
                                "evaluation changes the buffers");
                  net->train();
                  // Two updates by 0.1 of the batch mean, rank + 1.25. The first, from 0, leaves
                  // the start of the second, which is rank 0's if `broadcasts`.
                  const auto mean = [](int rank) {
                      return 0.1F * (static_cast<float>(rank) + 1.25F);
                  };
                  const auto start = mean(broadcasts ? 0 : session.rank());
                  const auto expected = 0.9F * start + mean(session.rank());
                  report.expect(
                      std::abs(own[0].item<float>() - expected) < 1e-5F,
                      text_of("the mean is ", own[0].item<float>(), " instead of ", expected));
              }) == "");
}

TEST_CASE("a module without its type, whose forward the trainer calls itself") {
    CHECK(problems_here([](Session& session, Report& report) {
              Normed net;
              torch::nn::Module& plain = *net;
              gz::torch::DistributedDataParallel parallel(plain);
              net->norm->running_mean.fill_(session.rank());
              parallel.begin_forward();
              report.expect(net->norm->running_mean.sum().item<float>() == 0, "the buffers");
              net->forward(torch::ones({4, 3}) * (session.rank() + 1)).sum().backward();
              const auto gradient = net->layer->bias.grad().sum().item<float>();
              report.expect(gradient == 8, text_of("the gradient is ", gradient));
          }) == "");
}

TEST_CASE("modules that cannot train are refused") {
    CHECK(problems_here([](Session&, Report& report) {
              expect_error(report, "invalid_argument: ", "there is no module",
                           [] { gz::torch::DistributedDataParallel parallel{Net(nullptr)}; });
              Net net(7);
              for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
              expect_error(report, "invalid_argument: module 'models::NetImpl'",
                           "has no parameters",
                           [&] { gz::torch::DistributedDataParallel parallel(net); });
          }) == "");
}
