// Trains a small convolutional network on Fashion-MNIST, with dlib.
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

    Network network;
    const dlib::sgd solver(0, 0.9F);
    dlib::dnn_trainer<Network> trainer(network, solver);
    trainer.set_learning_rate(options.rate);
    trainer.set_learning_rate_shrink_factor(1);
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        std::vector<double> losses;
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            trainer.train_one_step(images_of(batch), labels_of(batch));
            losses.push_back(trainer.get_average_loss());
            trainer.clear_average_loss();
            report.step(losses);
        }
        std::int64_t correct = 0;
        trainer.get_net();
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
