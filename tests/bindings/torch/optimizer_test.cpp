// guozhuangtorch::DistributedOptimizer, compared with one process that has the whole batch.
#include "bindings/torch/models.hpp"

using namespace models;

namespace {

using torch::optim::SGD;

SGD sgd_of(Net& net) {
    return SGD(parameters_of(*net), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

void trains_as_one_process(Session& session, Report& report, Cleared cleared, bool channels_last) {
    Net net(7), alone(7);
    if (channels_last)
        for (auto* each : {&net, &alone})
            (*each)->convolution->weight.set_data(
                (*each)->convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
    auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
    gz::torch::DistributedOptimizer optimizer(sgd, *net);
    for (std::uint64_t step = 0; step < 6; ++step) {
        const auto batch = batch_of(session, step, step % 3 != 0);
        clear_gradients(*net, cleared);
        clear_gradients(*alone, cleared);
        loss_of(*alone, batch).backward();
        sgd_alone.step();
        loss_of(*net, batch.share(session)).backward();
        report.expect(optimizer.step(), "step() says that it has not stepped");
        expect_same(report, *net, *alone, text_of("step ", step));
    }
}

}  // namespace

// Among the layers are tied ones, some that only one rank uses, only in some steps, and some that
// no rank uses: weight decay and momentum must not touch those.
TEST_CASE("training is that of one process with the whole batch") {
    for (const auto cleared : {Cleared::to_zero, Cleared::to_none})
        for (const bool channels_last : {false, true})
            CHECK(problems_here([&](Session& session, Report& report) {
                      trains_as_one_process(session, report, cleared, channels_last);
                  }) == "");
}

TEST_CASE("gradients that are not cleared go on as in one process") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), alone(7);
              auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              for (std::uint64_t step = 0; step < 4; ++step) {
                  const auto batch = batch_of(session, step, step % 2 == 0);
                  loss_of(*alone, batch).backward();
                  sgd_alone.step();
                  loss_of(*net, batch.share(session)).backward();
                  optimizer.step();
                  expect_same(report, *net, *alone, text_of("step ", step));
              }
          }) == "");
}

TEST_CASE("what takes any optimizer takes a distributed one, and sets its learning rate") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), alone(7);
              auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              const auto train = [](torch::optim::Optimizer& any, double rate, const auto& loss) {
                  any.zero_grad();
                  loss().backward();
                  for (auto& group : any.param_groups()) group.options().set_lr(rate);
                  any.step();
              };
              for (std::uint64_t step = 0; step < 4; ++step) {
                  const auto batch = batch_of(session, step, step % 2 == 0);
                  const auto rate = 0.1 / static_cast<double>(step + 1);
                  train(sgd_alone, rate, [&] { return loss_of(*alone, batch); });
                  train(optimizer, rate, [&] { return loss_of(*net, batch.share(session)); });
                  expect_same(report, *net, *alone, text_of("step ", step));
              }
              for (auto* each : {&sgd, &sgd_alone}) each->param_groups()[0].options().set_lr(0.7);
              const auto batch = batch_of(session, 4, true);
              optimizer.zero_grad();
              sgd_alone.zero_grad();
              loss_of(*alone, batch).backward();
              loss_of(*net, batch.share(session)).backward();
              sgd_alone.step();
              optimizer.step();
              expect_same(report, *net, *alone, "after a rate set in the wrapped optimizer");
              report.expect(optimizer.param_groups()[0].options().get_lr() == 0.7, "its rate");
          }) == "");
}

TEST_CASE("passes that accumulate, by option and by no_sync") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), other(7), alone(7);
              auto sgd = sgd_of(net), sgd_other = sgd_of(other), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net, {.backward_passes_per_step = 2});
              gz::torch::DistributedOptimizer paused(sgd_other, *other);
              for (std::uint64_t step = 0; step < 3; ++step) {
                  const auto first = batch_of(session, 2 * step, true);
                  const auto second = batch_of(session, 2 * step + 1, false);
                  for (auto* each : {&net, &other, &alone})
                      clear_gradients(**each, step == 0 ? Cleared::to_zero : Cleared::to_none);
                  loss_of(*alone, first).backward();
                  loss_of(*alone, second).backward();
                  sgd_alone.step();
                  loss_of(*net, first.share(session)).backward();
                  report.expect(!optimizer.step(), "the first of two passes has stepped");
                  loss_of(*net, second.share(session)).backward();
                  report.expect(optimizer.step(), "the second of two passes has not stepped");
                  expect_same(report, *net, *alone, text_of("two passes, step ", step));
                  {
                      const auto guard = paused.no_sync();
                      loss_of(*other, first.share(session)).backward();
                  }
                  loss_of(*other, second.share(session)).backward();
                  paused.step();
                  expect_same(report, *other, *alone, text_of("no_sync, step ", step));
              }
          }) == "");
}

TEST_CASE("synchronize gives the averages, and the next step only steps") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), alone(7);
              auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              const auto batch = batch_of(session, 1);
              for (int step = 0; step < 2; ++step) {
                  optimizer.zero_grad();
                  clear_gradients(*alone, Cleared::to_zero);
                  loss_of(*alone, batch).backward();
                  loss_of(*net, batch.share(session)).backward();
                  optimizer.synchronize();
                  torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
                  torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1);
                  optimizer.step();
                  sgd_alone.step();
                  expect_same(report, *net, *alone, text_of("step ", step));
              }
          }) == "");
}

TEST_CASE("a wait with a limit ends there, and another one goes on") {
    CHECK(problems_here([](Session& session, Report& report) {
              using std::chrono::milliseconds;
              Net net(7), alone(7);
              auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              const auto batch = batch_of(session, 1);
              const bool is_late = session.rank() == session.size() - 1;
              for (int step = 0; step < 2; ++step) {
                  optimizer.zero_grad();
                  clear_gradients(*alone, Cleared::to_zero);
                  loss_of(*alone, batch).backward();
                  sgd_alone.step();
                  loss_of(*net, batch.share(session)).backward();
                  if (!is_late)
                      report.expect(!optimizer.synchronize_for(milliseconds(1)),
                                    "averages without the last rank");
                  gz::barrier();
                  while (!optimizer.synchronize_for(milliseconds(100))) continue;
                  report.expect(optimizer.synchronize_for(milliseconds(0)), "they are here");
                  optimizer.step();
                  expect_same(report, *net, *alone, text_of("step ", step));
              }
          }) == "");
}

// The generator's backward runs through the discriminator, whose gradients it does not want.
TEST_CASE("two optimizers that take turns, where one's backward runs through both models") {
    CHECK(problems_here([](Session& session, Report& report) {
              const auto layer = [](std::int64_t in, std::int64_t out) {
                  torch::manual_seed(3);
                  torch::nn::Linear made(in, out);
                  made->to(at::kDouble);
                  return made;
              };
              auto generator = layer(2, 3), generator_alone = layer(2, 3);
              auto judge = layer(3, 1), judge_alone = layer(3, 1);
              const auto plain = [](torch::nn::Linear& module) {
                  return SGD(module->parameters(), torch::optim::SGDOptions(0.1));
              };
              auto sgd_g = plain(generator), sgd_g_alone = plain(generator_alone);
              auto sgd_j = plain(judge), sgd_j_alone = plain(judge_alone);
              gz::torch::DistributedOptimizer optimizer_g(sgd_g, *generator);
              gz::torch::DistributedOptimizer optimizer_j(sgd_j, *judge);
              const auto judged = [](auto& judging, const Tensor& made) {
                  return torch::sigmoid(judging->forward(made)).mean();
              };
              for (int step = 0; step < 3; ++step) {
                  const auto noise = torch::randn({session.size() * batch_of_rank, 2}, at::kDouble);
                  const auto own = Batch{noise, noise}.share(session).inputs;
                  optimizer_g.zero_grad();
                  {
                      const auto guard = optimizer_j.no_sync();
                      judged(judge, generator->forward(own)).backward();
                  }
                  optimizer_g.step();
                  optimizer_j.zero_grad();
                  (-judged(judge, generator->forward(own).detach())).backward();
                  optimizer_j.step();

                  sgd_g_alone.zero_grad();
                  judged(judge_alone, generator_alone->forward(noise)).backward();
                  sgd_g_alone.step();
                  sgd_j_alone.zero_grad();
                  (-judged(judge_alone, generator_alone->forward(noise).detach())).backward();
                  sgd_j_alone.step();
                  expect_same(report, *generator, *generator_alone, "the generator");
                  expect_same(report, *judge, *judge_alone, "the discriminator");
              }
          }) == "");
}

TEST_CASE("a batch in which backward throws on one rank is discarded on all") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7), alone(7);
              auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              const auto batch = batch_of(session, 1);
              const auto step_and_compare = [&](const std::string& when) {
                  clear_gradients(*net, Cleared::to_none);
                  clear_gradients(*alone, Cleared::to_none);
                  loss_of(*net, batch.share(session)).backward();
                  optimizer.step();
                  loss_of(*alone, batch).backward();
                  sgd_alone.step();
                  expect_same(report, *net, *alone, when);
              };
              step_and_compare("before");
              if (session.rank() == session.size() - 1) {
                  const auto hook = net->tied.register_hook([](const Tensor&) -> Tensor {
                      throw std::runtime_error("an image could not be read");
                  });
                  try {
                      loss_of(*net, batch.share(session)).backward();
                      report.expect(false, "backward does not throw");
                  } catch (const std::exception& error) {
                      optimizer.discard(error.what());
                  }
                  net->tied.remove_hook(hook);
              } else {
                  loss_of(*net, batch.share(session)).backward();
                  expect_error(report, "discarded: ", "could not be read",
                               [&] { optimizer.step(); });
              }
              step_and_compare("after");
          }) == "");
}

TEST_CASE("an optimizer that throws steps again with the same averages") {
    CHECK(problems_here([](Session& session, Report& report) {
              struct Moody final : SGD {
                  using SGD::SGD;
                  Tensor step(LossClosure closure = nullptr) override {
                      if (std::exchange(throws, false)) throw std::runtime_error("not today");
                      return SGD::step(closure);
                  }
                  bool throws = true;
              };
              Net net(7), alone(7);
              Moody sgd(parameters_of(*net), torch::optim::SGDOptions(0.1));
              SGD sgd_alone(parameters_of(*alone), torch::optim::SGDOptions(0.1));
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              const auto batch = batch_of(session, 1);
              loss_of(*alone, batch).backward();
              sgd_alone.step();
              loss_of(*net, batch.share(session)).backward();
              try {
                  optimizer.step();
                  report.expect(false, "the exception is lost");
              } catch (const std::runtime_error&) {
                  optimizer.step();
              }
              expect_same(report, *net, *alone, "the second call");
              sgd.throws = true;  // and now another batch comes instead
              loss_of(*net, batch.share(session)).backward();
              try {
                  optimizer.step();
              } catch (const std::runtime_error&) {
                  optimizer.discard("not today");
                  clear_gradients(*net, Cleared::to_none);
                  clear_gradients(*alone, Cleared::to_none);
              }
              loss_of(*net, batch.share(session)).backward();
              loss_of(*alone, batch).backward();
              optimizer.step();
              sgd_alone.step();
              expect_same(report, *net, *alone, "another batch");
          }) == "");
}

TEST_CASE("the ranks of a process set train alone") {
    CHECK(problems_here([](Session& session, Report& report) {
              const auto set = gz::ProcessSet::create({session.size() - 1}, &session);
              if (!set.contains(session.rank())) return;
              Net net(7), alone(7);
              auto sgd = sgd_of(net), sgd_alone = sgd_of(alone);
              gz::torch::DistributedOptimizer optimizer(sgd, *net, {.process_set = set});
              const auto batch = batch_of(session, 1).share(session);
              loss_of(*alone, batch).backward();
              sgd_alone.step();
              loss_of(*net, batch).backward();
              optimizer.step();
              const auto expected = alone->named_parameters();
              for (const auto& item : net->named_parameters())
                  report.expect(torch::equal(item.value(), expected[item.key()]),
                                "the rank of the set does not train as one process");
          }) == "");
}

TEST_CASE("what cannot be trained is refused by name") {
    CHECK(problems_here([](Session& session, Report& report) {
              const auto refused = [&](const std::string& parts, const std::string& more,
                                       torch::nn::Module& module, std::vector<Tensor> given) {
                  SGD sgd(std::move(given), torch::optim::SGDOptions(0.1));
                  expect_error(report, parts, more,
                               [&] { gz::torch::DistributedOptimizer optimizer(sgd, module); });
              };
              struct Any : torch::nn::Module {
                  using torch::nn::Module::register_parameter;
              };
              const auto one = [&](const std::string& more, const Tensor& tensor) {
                  Any module;
                  module.register_parameter("odd", tensor);
                  refused("invalid_argument: 'odd'", more, module, {tensor});
              };
              one("ComplexFloat", torch::zeros({2}, at::kComplexFloat));
              one("gaps", torch::zeros({4, 4}).slice(1, 0, 2));
              one("meta", torch::zeros({2}, at::kMeta));
              Any empty;
              refused("invalid_argument", "has no parameters that require a gradient", empty, {});
              Net net(7), other(7);
              refused("invalid_argument: ", "does not have", *net, other->parameters());
              refused("invalid_argument: 'tied'", "twice", *net, {net->tied, net->tied});
              refused("invalid_argument: ", "has no parameters", *net, {});

              auto sgd = sgd_of(net);
              gz::torch::DistributedOptimizer optimizer(sgd, *net);
              expect_error(report, "invalid_argument: ", "step() was called, but no gradient",
                           [&] { optimizer.step(); });
              const auto batch = batch_of(session, 1).share(session);
              loss_of(*net, batch).backward();
              optimizer.step();
              expect_error(report, "invalid_argument: ", "step() was called, but no gradient",
                           [&] { optimizer.step(); });
              loss_of(*net, batch).backward();
              expect_error(report, "invalid_argument", "marked ready twice",
                           [&] { loss_of(*net, batch).backward(); });
              expect_error(report, "invalid_argument", "marked ready twice",
                           [&] { optimizer.step(); });
              loss_of(*net, batch).backward();
              report.expect(optimizer.step(), "the batch after that does not step");
          }) == "");
}

TEST_CASE("parameters that differ are refused on all ranks") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.size() == 1) return;
              torch::nn::Linear layer(4, session.rank() == session.size() - 1 ? 5 : 4);
              SGD sgd(layer->parameters(), torch::optim::SGDOptions(0.1));
              expect_error(report, "mismatch: parameters that require a gradient differ: 'weight'",
                           text_of("[5, 4], strides [4, 1] on rank ", session.size() - 1),
                           [&] { gz::torch::DistributedOptimizer optimizer(sgd, *layer); });
              Net net(7);
              if (session.rank() == 0)
                  net->convolution->weight.set_data(
                      net->convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
              auto other = sgd_of(net);
              expect_error(
                  report,
                  "mismatch: parameters that require a gradient differ: 'convolution.weight'",
                  "strides", [&] { gz::torch::DistributedOptimizer optimizer(other, *net); });
          }) == "");
}

TEST_CASE("L-BFGS, whose closure is evaluated several times in a step") {
    CHECK(problems_here([](Session& session, Report& report) {
              const auto options = torch::optim::LBFGSOptions(0.5).max_iter(3);
              Net net(7), alone(7);
              torch::optim::LBFGS lbfgs(parameters_of(*net), options);
              torch::optim::LBFGS lbfgs_alone(parameters_of(*alone), options);
              gz::torch::DistributedOptimizer optimizer(lbfgs, *net);
              for (std::uint64_t number = 0; number < 3; ++number) {
                  const auto batch = batch_of(session, number);
                  const auto loss = optimizer.step([&] {
                      optimizer.zero_grad();
                      auto value = loss_of(*net, batch.share(session));
                      value.backward();
                      return value;
                  });
                  const auto expected = lbfgs_alone.step([&] {
                      lbfgs_alone.zero_grad();
                      auto value = loss_of(*alone, batch);
                      value.backward();
                      return value;
                  });
                  const auto off = std::abs((loss - expected).item<double>());
                  report.expect(off < 1e-9, text_of("the mean loss, but for ", off));
              }
              expect_same(report, *net, *alone, "three steps later");
          }) == "");
}
