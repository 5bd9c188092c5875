// Trains a small network on Fashion-MNIST.
#include "dataset.hpp"
#include "model.hpp"
#include "options.hpp"
#include "report.hpp"
#include "sgd.hpp"

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

    Model model(options.seed);
    Sgd sgd(model.parameters(), options.rate, steps * options.epochs);
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        std::vector<double> losses;
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            losses.push_back(model.backward(batch));
            sgd.step();
            report.step(losses);
        }
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
