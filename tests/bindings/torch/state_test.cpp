// Exchange of parameters, buffers and an optimizer's state between ranks, and the distribution of
// samples.
#include "bindings/torch/models.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

using namespace models;

namespace {

struct Rows : torch::data::Dataset<Rows, torch::data::Example<>> {
    torch::data::Example<> get(std::size_t index) override {
        const auto number = torch::full({1}, static_cast<std::int64_t>(index), at::kLong);
        return {number, number};
    }
    c10::optional<std::size_t> size() const override { return 10; }
};

/// Trains on the last rank, gives its state to all, and goes on: all must train alike.
template <class Optimizer, class Options>
void goes_on_everywhere(Session& session, Report& report, const Options& options) {
    const int root = session.size() - 1;
    Net net(7 + static_cast<std::uint64_t>(session.rank()));
    Optimizer optimizer(parameters_of(*net), options);
    const auto batch = batch_of(session, 1);
    const auto step = [&] {
        optimizer.zero_grad();
        loss_of(*net, batch).backward();
        optimizer.step();
    };
    if (session.rank() == root)
        for (int count = 0; count < 3; ++count) step();
    gz::torch::broadcast_parameters(*net, root);
    gz::torch::broadcast_optimizer_state(optimizer, root);
    step();
    step();
    Net alone(7 + static_cast<std::uint64_t>(root));
    Optimizer optimizer_alone(parameters_of(*alone), options);
    for (int count = 0; count < 5; ++count) {
        optimizer_alone.zero_grad();
        loss_of(*alone, batch).backward();
        optimizer_alone.step();
    }
    clear_gradients(*net, Cleared::to_none);
    clear_gradients(*alone, Cleared::to_none);
    expect_same(report, *net, *alone, "two steps later");
}

}  // namespace

TEST_CASE("the state of an optimizer, which other ranks have not yet") {
    CHECK(problems_here([](Session& session, Report& report) {
              goes_on_everywhere<torch::optim::SGD>(session, report,
                                                    torch::optim::SGDOptions(0.1).momentum(0.9));
              goes_on_everywhere<torch::optim::Adam>(session, report,
                                                     torch::optim::AdamOptions(0.01).amsgrad(true));
          }) == "");
}

TEST_CASE("state that only other ranks have is gone") {
    CHECK(problems_here([](Session& session, Report& report) {
              Net net(7);
              torch::optim::Adam adam(parameters_of(*net), torch::optim::AdamOptions(0.01));
              if (session.rank() != 0) {
                  loss_of(*net, batch_of(session, 1)).backward();
                  adam.step();
              }
              gz::torch::broadcast_optimizer_state(adam);
              report.expect(adam.state().empty(), "there is state that root does not have");
          }) == "");
}

TEST_CASE("parameters and buffers of a module, from any rank") {
    CHECK(problems_here([](Session& session, Report& report) {
              const int root = session.size() - 1;
              torch::nn::BatchNorm2d norm(3);
              torch::nn::Conv2d layer(2, 3, 3);
              torch::nn::Sequential model(layer, norm);
              const torch::NoGradGuard no_graph;
              for (auto& each : model->parameters()) each.fill_(session.rank() + 1);
              for (auto& each : model->buffers()) each.fill_(session.rank() + 2);
              layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
              gz::torch::broadcast_parameters(*model, root);
              for (const auto& each : model->parameters())
                  report.expect((each == root + 1).all().item<bool>(), "another parameter");
              for (const auto& each : model->buffers())
                  report.expect((each == root + 2).all().item<bool>(), "another buffer");
          }) == "");
}

TEST_CASE("root's elements arrive in place, however each rank has laid out its tensors") {
    CHECK(problems_here([](Session& session, Report& report) {
              const bool is_root = session.rank() == 0;
              const auto numbers = [&](at::ScalarType type) {
                  auto all = torch::arange(81, at::kDouble).reshape({3, 3, 3, 3}).to(type);
                  return is_root ? all : torch::zeros_like(all);
              };
              torch::nn::Module module;
              auto weight = numbers(at::kDouble);
              if (!is_root) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
              module.register_parameter("weight", weight);
              auto turned = numbers(at::kFloat);
              if (is_root) turned = turned.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0});
              module.register_buffer("turned", turned);
              module.register_buffer("complex", numbers(at::kComplexFloat));
              auto conjugate = (numbers(at::kComplexFloat) * c10::complex<float>(0, 1));
              if (session.rank() % 2 == 0) conjugate = conjugate.conj_physical().conj();
              module.register_buffer("conjugate", conjugate);
              auto negated = numbers(at::kLong);
              if (session.rank() % 2 == 0) negated = torch::_neg_view(negated.neg());
              module.register_buffer("negated", negated);
              gz::torch::broadcast_parameters(module);
              const auto expected = torch::arange(81, at::kDouble).reshape({3, 3, 3, 3});
              for (const auto& all : {module.named_parameters(), module.named_buffers()})
                  for (const auto& item : all) {
                      auto value = item.value();
                      if (item.key() == "conjugate") value = at::imag(value);
                      if (item.key() == "complex") value = at::real(value);
                      report.expect(torch::equal(value.to(at::kDouble), expected),
                                    text_of("'", item.key(), "' has other elements"));
                  }
              report.expect(weight.is_contiguous() == is_root, "the layout is root's");
          }) == "");
}

TEST_CASE("an optimizer that cannot have root's state keeps its own, and all ranks are told") {
    CHECK(problems_here([](Session& session, Report& report) {
              if (session.size() == 1) return;
              const bool is_last = session.rank() == session.size() - 1;
              const auto ones = [] { return torch::ones({2}, torch::requires_grad()); };
              const auto group = [&](std::size_t count, double rate) {
                  std::vector<Tensor> tensors(count);
                  for (auto& tensor : tensors) tensor = ones();
                  return torch::optim::OptimizerParamGroup(
                      tensors, std::make_unique<torch::optim::SGDOptions>(
                                   torch::optim::SGDOptions(rate).momentum(0.9)));
              };
              std::vector<torch::optim::OptimizerParamGroup> groups;
              groups.push_back(group(1, is_last ? 0.5 : 0.25));
              groups.push_back(group(is_last ? 1 : 2, 0.125));
              torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1));
              const auto first = sgd.param_groups()[0].params()[0];
              const auto step = [&](double factor) {
                  sgd.zero_grad();
                  (first * factor).sum().backward();
                  sgd.step();
              };
              step(is_last ? 3 : 1);  // a momentum of that
              const auto start = first.detach().clone();
              std::string error;
              try {
                  gz::torch::broadcast_optimizer_state(sgd);
              } catch (const std::exception& thrown) {
                  error = thrown.what();
              }
              const auto expected =
                  text_of(is_last ? "" : text_of("rank ", session.size() - 1, ": "),
                          "loaded state dict contains a parameter group that has "
                          "a different size");
              report.expect(error.starts_with(expected), text_of("'", error, "'"));
              step(0);
              const auto moved = (start - first.detach())[0].item<double>();
              const auto wanted = 0.9 * (is_last ? 3 * 0.5 : 0.25);
              report.expect(std::abs(moved - wanted) < 1e-6,
                            text_of("a step of ", moved, " instead of ", wanted));
          }) == "");
}

TEST_CASE("where root's optimizer cannot be saved, all ranks are told, and keep their own state") {
    CHECK(problems_here([](Session& session, Report& report) {
              struct Unsaved : torch::optim::SGD {
                  using SGD::SGD;
                  void save(torch::serialize::OutputArchive&) const override {
                      throw std::runtime_error("a state that cannot be saved");
                  }
              };
              const int root = session.size() - 1;
              const auto weight = torch::ones({2}, torch::requires_grad());
              Unsaved sgd({weight}, torch::optim::SGDOptions(0.5).momentum(0.5));
              weight.sum().backward();
              sgd.step();
              std::string error;
              try {
                  gz::torch::broadcast_optimizer_state(sgd, root);
              } catch (const std::exception& thrown) {
                  error = thrown.what();
              }
              const auto prefix = session.rank() == root ? "" : text_of("rank ", root, ": ");
              report.expect(error == prefix + "a state that cannot be saved", error);
              sgd.step();
              report.expect(weight[0].item<float>() == -0.25F, "the momentum is gone");
          }) == "");
}

TEST_CASE("a data loader's samples: of each epoch others, and of all ranks all") {
    CHECK(problems_here([](Session& session, Report& report) {
              auto loader = torch::data::make_data_loader(
                  Rows().map(torch::data::transforms::Stack<>()),
                  gz::torch::DistributedSampler(10, {.seed = 5, .tail = gz::Tail::uneven}), 2);
              std::vector<std::vector<std::int64_t>> epochs;
              for (int epoch = 0; epoch < 2; ++epoch) {
                  std::vector<std::int64_t> own;
                  for (const auto& batch : *loader)
                      for (std::int64_t i = 0; i < batch.data.size(0); ++i)
                          own.push_back(batch.data[i].item<std::int64_t>());
                  gz::DistributedSampler expected(10, {.seed = 5, .tail = gz::Tail::uneven});
                  expected.set_epoch(static_cast<std::uint64_t>(epoch));
                  report.expect(std::ranges::equal(own, expected.indices(), {}, {},
                                                   [](auto i) { return std::int64_t(i); }),
                                text_of("other samples in epoch ", epoch));
                  epochs.push_back(gz::all_gather(own).as<std::int64_t>());
              }
              report.expect(epochs[0] != epochs[1], "both epochs have the same order");
              for (auto& all : epochs) {
                  std::ranges::sort(all);
                  report.expect(all == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                                "the ranks' samples are not the data set");
              }
              report.expect(session.size() > 0, "");
          }) == "");
}

TEST_CASE("a sampler goes on where it was saved") {
    CHECK(problems_here([](Session&, Report& report) {
              gz::torch::DistributedSampler sampler(40, {.seed = 5});
              for (int epoch = 0; epoch < 3; ++epoch) sampler.reset();
              sampler.next(2);
              torch::serialize::OutputArchive saved;
              sampler.save(saved);
              std::stringstream stream;
              saved.save_to(stream);
              torch::serialize::InputArchive archive;
              archive.load_from(stream);
              gz::torch::DistributedSampler resumed(40, {.seed = 5});
              resumed.load(archive);
              report.expect(resumed.next(3) == sampler.next(3), "other samples");
              sampler.reset();
              resumed.reset();
              report.expect(resumed.next(3) == sampler.next(3), "other samples in the next epoch");
              resumed.set_epoch(0);
              resumed.reset();
              gz::torch::DistributedSampler fresh(40, {.seed = 5});
              report.expect(resumed.next(3) == fresh.next(3), "other samples in epoch 0");
              resumed.reset(4);
              report.expect(resumed.next(8)->size() <= 4, "the new size is ignored");
          }) == "");
}
