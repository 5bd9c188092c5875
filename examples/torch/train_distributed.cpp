// Trains a small convolutional network on Fashion-MNIST, with libtorch.
#include "network.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <guozhuang/guozhuang.hpp>
#include <guozhuang/torch.hpp>
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

    torch::manual_seed(options.seed);
    Network network;
    torch::optim::SGD sgd(network->parameters(),
                          torch::optim::SGDOptions(options.rate).momentum(0.5));
    gz::torch::broadcast_parameters(*network);
    gz::torch::DistributedOptimizer optimizer(sgd, *network);
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        std::vector<double> losses;
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            optimizer.zero_grad();
            auto loss = torch::nll_loss(network->forward(images_of(batch)), labels_of(batch));
            loss.backward();
            optimizer.step();
            losses.push_back(loss.item<double>());
            report.step(losses);
        }
        gz::allreduce(losses, {.op = gz::ReduceOp::average});  // the loss of each whole batch
        std::int64_t correct = 0;
        for (const Batch& batch : Batches(test, test_samples, batch_size))
            correct += count_correct(network, batch);
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
