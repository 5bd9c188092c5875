// Trains a small network on Fashion-MNIST, with Eigen.
#include "network.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <guozhuang/guozhuang.hpp>
#include <vector>

#include "fashion_mnist/options.hpp"
#include "fashion_mnist/report.hpp"

using namespace fashion;
namespace gz = guozhuang;

static void train(const Options& options, Report& report) {
    const Dataset training = load_dataset(options.data, "train");
    const Dataset test = load_dataset(options.data, "t10k");
    // The same batch, split over the ranks.
    const std::size_t batch_size = report.share_of(options.batch, gz::size());
    gz::DistributedSampler sampler(training.size(), {.seed = options.seed});
    const gz::SamplerOptions each_once{.shuffle = false, .tail = gz::Tail::uneven};
    const auto test_samples = gz::DistributedSampler(test.size(), each_once).indices();
    const auto steps = Batches(training, sampler.indices(), batch_size, options.steps).count();

    Network network(options.seed);
    Sgd sgd(network.tensors(), options.rate);
    const auto parameters = gz::parameters_of(network.tensors());
    gz::broadcast_parameters(parameters);
    gz::DistributedOptimizer optimizer(sgd, parameters);
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        std::vector<double> losses;
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            losses.push_back(network.backward(batch, optimizer.on_gradient()));
            optimizer.step();
            report.step(losses);
        }
        gz::allreduce(losses, {.op = gz::ReduceOp::average});  // the loss of each whole batch
        std::int64_t correct = 0;
        for (const Batch& batch : Batches(test, test_samples, batch_size))
            correct += network.count_correct(batch);
        gz::allreduce(correct);
        accuracy = static_cast<double>(correct) / static_cast<double>(test.size());
        report.epoch_done(losses, accuracy);
    }
    if (gz::rank() == 0) std::printf("accuracy=%.4f ranks=%d\n", accuracy, gz::size());
}

int main(int argc, char** argv) {
    Report report;
    try {
        const Options options = parse_options(argc, argv);
        gz::Session session(&argc, &argv);
        if (session.rank() != 0) report.mute();
        train(options, report);
    } catch (const std::exception& error) {
        return report.failed(error);
    }
}
