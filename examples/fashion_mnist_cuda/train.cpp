// Trains a small network on Fashion-MNIST, on a GPU.
#include "fashion_mnist/dataset.hpp"
#include "fashion_mnist/options.hpp"
#include "fashion_mnist/report.hpp"
#include "fashion_mnist_cuda/device.hpp"
#include "fashion_mnist_cuda/losses.hpp"
#include "fashion_mnist_cuda/model.hpp"
#include "fashion_mnist_cuda/sgd.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

using namespace fashion;

static void train(const Options& options, Report& report) {
    const Dataset training = load_dataset(options.data, "train");
    const Dataset test = load_dataset(options.data, "t10k");
    const std::size_t batch_size = options.batch;
    Shuffle sampler(training.size(), options.seed);
    const auto test_samples = in_order(test.size());
    const auto steps = Batches(training, sampler.indices(), batch_size, options.steps).count();

    const cuda::Stream stream;
    cuda::Model model(Model(options.seed), batch_size, stream);
    cuda::Sgd sgd(model.parameters(), options.rate, steps * options.epochs, stream);
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        cuda::Losses losses_on_device(steps);
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            model.backward(batch, losses_on_device.next());
            sgd.step();
            if (report.is_due(losses_on_device.size())) report.step(losses_on_device.read());
        }
        std::vector<double> losses = losses_on_device.read();
        std::int64_t correct = 0;
        for (const Batch& batch : Batches(test, test_samples, batch_size))
            correct += model.count_correct(batch);
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
