// Trains a small convolutional network on Fashion-MNIST, with libtorch.
#include "network.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "fashion_mnist/options.hpp"
#include "fashion_mnist/report.hpp"

using namespace fashion;

static void train(const Options& options, Report& report) {
    const Dataset training = load_dataset(options.data, "train");
    const Dataset test = load_dataset(options.data, "t10k");
    const std::size_t batch_size = options.batch;
    Shuffle sampler(training.size(), options.seed);
    const auto test_samples = in_order(test.size());
    const auto steps = Batches(training, sampler.indices(), batch_size, options.steps).count();

    torch::manual_seed(options.seed);
    Network network;
    torch::optim::SGD sgd(network->parameters(),
                          torch::optim::SGDOptions(options.rate).momentum(0.5));
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        std::vector<double> losses;
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            sgd.zero_grad();
            auto loss = torch::nll_loss(network->forward(images_of(batch)), labels_of(batch));
            loss.backward();
            sgd.step();
            losses.push_back(loss.item<double>());
            report.step(losses);
        }
        std::int64_t correct = 0;
        for (const Batch& batch : Batches(test, test_samples, batch_size))
            correct += count_correct(network, batch);
        accuracy = static_cast<double>(correct) / static_cast<double>(test.size());
        report.epoch_done(losses, accuracy);
    }
    std::printf("accuracy=%.4f\n", accuracy);
}

int main(int argc, char** argv) {
    Report report;
    try {
        const Options options = parse_options(argc, argv);
        train(options, report);
    } catch (const std::exception& error) {
        return report.failed(error);
    }
}
