// Trains a small convolutional network on Fashion-MNIST, with dlib.
#include "network.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <guozhuang/dlib.hpp>
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

    Network network;
    network(std::vector<Image>(1));  // makes the parameters
    gz::dlib::broadcast_net(network);
    const gz::dlib::DistributedSolver solver(network, dlib::sgd(0, 0.9F));
    dlib::dnn_trainer<Network, gz::dlib::DistributedSolver<dlib::sgd>> trainer(network, solver);
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
        gz::allreduce(losses, {.op = gz::ReduceOp::average});  // the loss of each whole batch
        std::int64_t correct = 0;
        trainer.get_net();
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
