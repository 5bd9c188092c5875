// The CUDA trainer's model and optimizer beside those of the CPU trainer.
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <numeric>

#include "emulation/cuda_objects.hpp"
#include "fashion_mnist/sgd.hpp"
#include "fashion_mnist_cuda/losses.hpp"
#include "fashion_mnist_cuda/model.hpp"
#include "fashion_mnist_cuda/sgd.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
namespace cuda = fashion::cuda;
using fashion::Batch;
using fashion::image_pixels;

namespace {

constexpr std::uint64_t seed = 7;
constexpr float rate = 0.05F;

Device own_gpu() {
    return {DeviceKind::cuda, cuda::use_device(local_rank())};
}

/// Samples that differ, from the number `first`.
Batch samples(std::size_t first, std::size_t count) {
    Batch batch;
    for (std::size_t sample = first; sample < first + count; ++sample) {
        for (std::size_t pixel = 0; pixel < image_pixels; ++pixel)
            batch.images.push_back(std::sin(static_cast<float>((sample + 1) * (pixel + 3))));
        batch.labels.push_back(static_cast<std::uint8_t>(sample * 7 % fashion::classes));
    }
    return batch;
}

std::vector<float> on_host(std::span<const float> device_memory) {
    std::vector<float> values(device_memory.size());
    cuda::copy<float>(values, device_memory);
    return values;
}

/// The largest distance between elements, as a fraction of the largest element (if that is not 0).
float distance(std::span<const float> values, std::span<const float> expected) {
    float largest = 0, furthest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        furthest = std::max(furthest, std::abs(values[i] - expected[i]));
    }
    return largest > 0 ? furthest / largest : furthest;
}

void expect_close(Report& report, double value, double expected, const std::string& what) {
    report.expect(std::abs(value - expected) < 1e-5,
                  text_of(what, " is ", value, " instead of ", expected));
}

void one_backward_pass(Report& report, std::size_t batch_size) {
    const auto batch = samples(0, batch_size);
    fashion::Model expected(seed);
    const double expected_loss = expected.backward(batch);

    own_gpu();
    const cuda::Stream stream;
    // The model has room for more samples than the batch has.
    cuda::Model model(fashion::Model(seed), batch_size + 3, stream);
    cuda::Losses losses(1);
    std::vector<std::size_t> hooked;
    model.backward(batch, losses.next(), [&](std::size_t position) { hooked.push_back(position); });

    expect_close(report, losses.read().at(0), expected_loss, "the loss");
    report.expect(hooked == std::vector<std::size_t>{5, 4, 3, 2, 1, 0}, "the order of the hooks");
    const auto tensors = model.parameters(), expected_tensors = expected.parameters();
    for (std::size_t i = 0; i < expected_tensors.size(); ++i) {
        const auto& [name, value, gradient] = expected_tensors[i];
        report.expect(tensors[i].name == name, "the names");
        report.expect(distance(on_host(tensors[i].value), value) == 0, name + " begins the same");
        const auto off = distance(on_host(tensors[i].gradient), gradient);
        report.expect(off < 1e-5F, text_of("the gradient of ", name, " is off by ", off));
    }
    report.expect(model.count_correct(batch) == expected.count_correct(batch), "the true classes");
}

/// The objects of train_distributed.cpp, for six steps. The model begins with other values on each
/// rank.
struct Trainer {
    static constexpr std::size_t steps = 6, batch_size = 5;

    explicit Trainer(int rank)
        : model(fashion::Model(seed + static_cast<unsigned>(rank)), batch_size, stream) {
        broadcast_parameters(parameters);
    }
    void step(const Batch& batch) {
        model.backward(batch, losses.next(), optimizer.on_gradient());
        optimizer.step();
    }

    const Device gpu = own_gpu();
    const cuda::Stream stream;
    cuda::Model model;
    cuda::Sgd sgd{model.parameters(), rate, steps, stream};
    cuda::Losses losses{steps};
    const std::vector<Parameter> parameters = parameters_of(model.parameters(), gpu);
    // Each gradient is a bundle of its own, which leaves when it is marked.
    DistributedOptimizer<cuda::Sgd> optimizer{
        sgd,
        parameters,
        {.bundle_bytes = 1, .first_bundle_bytes = 1, .stream = StreamRef{gpu, stream.native()}}};
};

/// Each rank has its share of the samples, of which the CPU trainer has all.
void train(Session& session, Report& report) {
    Trainer trainer(session.rank());
    fashion::Model expected(seed);
    fashion::Sgd sgd(expected.parameters(), rate, Trainer::steps);
    const auto whole_batch = Trainer::batch_size * static_cast<std::size_t>(session.size());
    const auto offset = Trainer::batch_size * static_cast<std::size_t>(session.rank());

    std::vector<double> expected_losses;
    for (std::size_t step = 0; step < Trainer::steps; ++step) {
        expected_losses.push_back(expected.backward(samples(step * whole_batch, whole_batch)));
        sgd.step();
        trainer.step(samples(step * whole_batch + offset, Trainer::batch_size));
    }
    auto losses = trainer.losses.read();
    allreduce(losses, {.op = ReduceOp::average});
    for (std::size_t step = 0; step < Trainer::steps; ++step)
        expect_close(report, losses[step], expected_losses[step], text_of("loss ", step));
    check_consistent(trainer.parameters, {}, StreamRef{trainer.gpu, trainer.stream.native()});
    const auto tensors = trainer.model.parameters();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto off = distance(on_host(tensors[i].value), expected.parameters()[i].value);
        report.expect(off < 1e-5F, text_of(tensors[i].name, " is off by ", off));
    }
}

/// After the first step, in which kernels are loaded and values compared, for which the host waits.
void step_while_the_stream_stands_still(Session& session, Report& report) {
    Trainer trainer(session.rank());
    trainer.step(samples(0, Trainer::batch_size));
    trainer.losses.read();
    const Gate gate;
    gate.hold(trainer.stream.native());
    trainer.step(samples(7, Trainer::batch_size));
    report.expect(cudaStreamQuery(trainer.stream.native()) == cudaErrorNotReady,
                  "the step returns before the stream has begun");
    gate.open();
    report.expect(trainer.losses.read().at(1) > 0, "then the loss comes");
}

}  // namespace

TEST_CASE("one backward pass on the device gives the gradients of the CPU") {
    for (const std::size_t batch_size : {1, 6, 33})
        CHECK(problems_here([batch_size](Session&, Report& report) {
                  one_backward_pass(report, batch_size);
              }) == "");
}

TEST_CASE("ranks with a share of each batch train as one CPU with all of it") {
    CHECK(problems_here(train) == "");
}

TEST_CASE("the host waits for no step of training on the device") {
    CHECK(problems_here(step_while_the_stream_stands_still) == "");
}
