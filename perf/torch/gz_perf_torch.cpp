// gz-perf-torch: one step of training with libtorch, by DistributedDataParallel and by PyTorch's
// own reducer over Gloo, beside the same step without communication, and beside one process that
// takes the whole batch. All in turns, in one run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <guozhuang/guozhuang.hpp>
#include <guozhuang/torch.hpp>
#include <map>
#include <memory>
#include <string>
#include <torch/torch.h>
#include <vector>

#include "statistics.hpp"
#include "torch/gloo_reducer.hpp"

namespace perf = guozhuang::perf;
namespace gz = guozhuang;
namespace nn = torch::nn;

namespace {

struct Options {
    std::string network = "wide";
    std::int64_t batch = 16;  // of each rank
    int rounds = 15;
    int steps = 10;  // of a round
};

struct Batch {
    torch::Tensor images, labels;
};

/// A network for images of 28 x 28 pixels in ten classes: that of examples/torch, with little to
/// communicate, or one of linear layers, with much.
nn::Sequential make_network(const std::string& name) {
    torch::manual_seed(7);
    if (name == "convolutional")
        return nn::Sequential(nn::Conv2d(1, 10, 5), nn::MaxPool2d(2), nn::ReLU(),
                              nn::Conv2d(10, 20, 5), nn::MaxPool2d(2), nn::ReLU(), nn::Flatten(),
                              nn::Linear(320, 50), nn::ReLU(), nn::Linear(50, 10));
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 2048), nn::ReLU(), nn::Linear(2048, 2048),
                          nn::ReLU(), nn::Linear(2048, 10));
}

/// One way of training the network; without communication it trains on this rank alone.
class Series {
public:
    explicit Series(const std::string& network_name)
        : network(make_network(network_name)),
          sgd(network->parameters(), torch::optim::SGDOptions(0.01)) {}
    virtual ~Series() = default;
    virtual torch::Tensor forward(const torch::Tensor& images) { return network->forward(images); }

    void step(const Batch& batch) {
        // As zero_grad() of libtorch 2, since that of 1.13 cannot clear views of c10d's buckets.
        for (auto& parameter : network->parameters()) parameter.mutable_grad().reset();
        nn::functional::cross_entropy(forward(batch.images), batch.labels).backward();
        sgd.step();
    }

    nn::Sequential network;
    torch::optim::SGD sgd;
    std::vector<double> seconds = {};  // of a step, for each round
};

struct GuozhuangSeries final : Series {
    explicit GuozhuangSeries(const std::string& name) : Series(name), parallel(network) {}
    torch::Tensor forward(const torch::Tensor& images) override { return parallel.forward(images); }
    gz::torch::DistributedDataParallel<nn::SequentialImpl> parallel;
};

struct GlooSeries final : Series {
    explicit GlooSeries(const std::string& name)
        : Series(name),
          reducer(perf::make_reducer(network->parameters(),
                                     perf::make_gloo_group(gz::rank(), gz::size()))) {}
    torch::Tensor forward(const torch::Tensor& images) override {
        reducer->prepare_for_forward();
        reducer->rebuild_buckets();
        auto output = network->forward(images);
        reducer->prepare_for_backward({});
        return output;
    }
    std::unique_ptr<c10d::Reducer> reducer;
};

/// Times steps of a series. One that takes the whole batch runs on the first rank alone.
void run_round(Series& series, const Batch& batch, int steps, bool is_alone) {
    gz::barrier();
    const auto start = perf::Clock::now();
    if (!is_alone || gz::rank() == 0)
        for (int step = 0; step < steps; ++step) series.step(batch);
    double seconds = perf::seconds_since(start) / steps;
    gz::allreduce(seconds, {.op = gz::ReduceOp::max});
    series.seconds.push_back(seconds);
}

/// Prints the median and the spread of a step, and, if `without` is given, how much longer it takes
/// than one of that series.
void print(const char* name, const Series& series, const Series* without = nullptr) {
    const double median = perf::quantile(series.seconds, 0.5);
    std::printf("%-14s %10.3f %10.3f %10.3f", name, 1e3 * median,
                1e3 * perf::quantile(series.seconds, 0), 1e3 * perf::quantile(series.seconds, 1));
    if (without != nullptr)
        std::printf(" %14.3f", 1e3 * (median - perf::quantile(without->seconds, 0.5)));
    std::printf("\n");
}

bool is_same(const nn::Sequential& network, const nn::Sequential& other) {
    const auto parameters = network->parameters(), expected = other->parameters();
    bool same = true;
    for (std::size_t i = 0; i < parameters.size(); ++i)
        same &= torch::allclose(parameters[i], expected[i], 1e-3, 1e-4);
    return same;
}

int run(const Options& options) {
    torch::set_num_threads(1);
    const auto size = gz::size() * options.batch, first = gz::rank() * options.batch;
    torch::manual_seed(1);
    const Batch whole{torch::randn({size, 1, 28, 28}), torch::randint(10, {size}, torch::kLong)};
    const Batch own{whole.images.slice(0, first, first + options.batch),
                    whole.labels.slice(0, first, first + options.batch)};
    GuozhuangSeries guozhuang(options.network);
    GlooSeries gloo(options.network);
    Series local(options.network), alone(options.network);
    const std::vector<Series*> all{&guozhuang, &gloo, &local, &alone};
    const auto run_rounds = [&](int rounds) {
        for (int round = 0; round < rounds; ++round)
            for (Series* series : all)
                run_round(*series, series == &alone ? whole : own, options.steps, series == &alone);
    };
    run_rounds(1);  // to warm up, and to compare while sums in another order have not led far
    int errors = 0;
    if (!is_same(guozhuang.network, gloo.network)) ++errors;
    if (gz::rank() == 0 && !is_same(guozhuang.network, alone.network)) ++errors;
    for (Series* series : all) series->seconds.clear();
    run_rounds(options.rounds);
    gz::allreduce(errors);
    if (gz::rank() != 0) return errors != 0;
    std::printf("%s network, %d ranks, batch %d x %d, %d rounds of %d steps; in ms\n",
                options.network.c_str(), gz::size(), gz::size(), static_cast<int>(options.batch),
                options.rounds, options.steps);
    std::printf("%-14s %10s %10s %10s %14s\n", "series", "median", "min", "max", "communication");
    print("guozhuang", guozhuang, &local);
    print("c10d + gloo", gloo, &local);
    print("without", local);
    print("one process", alone);
    if (errors != 0)
        std::printf("networks that differ after %d steps: %d\n", options.steps, errors);
    return errors != 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Times a step of training with libtorch, beside PyTorch's reducer over Gloo");
    Options options;
    app.add_option("--network", options.network)
        ->check(CLI::IsMember({"wide", "convolutional"}))
        ->capture_default_str();
    app.add_option("--batch", options.batch, "samples of each rank")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--steps", options.steps, "of a round")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        gz::Session session(&argc, &argv);
        return run(options);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
