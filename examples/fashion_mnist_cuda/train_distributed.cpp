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
#include <guozhuang/guozhuang.hpp>
#include <vector>

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

    const gz::Device gpu{gz::DeviceKind::cuda, cuda::use_device(gz::local_rank())};
    const cuda::Stream stream;
    cuda::Model model(Model(options.seed), batch_size, stream);
    cuda::Sgd sgd(model.parameters(), options.rate, steps * options.epochs, stream);
    const auto parameters = gz::parameters_of(model.parameters(), gpu);
    gz::broadcast_parameters(parameters);
    gz::DistributedOptimizer optimizer(sgd, parameters,
                                       {.stream = gz::StreamRef{gpu, stream.native()}});
    double accuracy = 0;

    report.begin(options, steps);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.set_epoch(epoch);
        cuda::Losses losses_on_device(steps);
        for (const auto& batch : Batches(training, sampler.indices(), batch_size, options.steps)) {
            model.backward(batch, losses_on_device.next(), optimizer.on_gradient());
            optimizer.step();
            if (report.is_due(losses_on_device.size())) report.step(losses_on_device.read());
        }
        std::vector<double> losses = losses_on_device.read();
        gz::allreduce(losses, {.op = gz::ReduceOp::average});  // the loss of each whole batch
        std::int64_t correct = 0;
        for (const Batch& batch : Batches(test, test_samples, batch_size))
            correct += model.count_correct(batch);
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
