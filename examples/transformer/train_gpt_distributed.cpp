// Trains a small GPT on the bytes of English sayings, and lets it write.
#include "adam.hpp"
#include "model.hpp"
#include "options.hpp"
#include "report.hpp"
#include "text.hpp"

#include <exception>
#include <guozhuang/guozhuang.hpp>
#include <span>
#include <vector>

using namespace transformer;
namespace gz = guozhuang;

static void train(const Options& options, Report& report) {
    const Sayings sayings = load_sayings(options.data);
    const auto held_out = sayings.size() / 10;
    const Windows training(part_of(sayings, held_out, sayings.size()), options.size.length);
    const Windows test(part_of(sayings, 0, held_out), options.size.length);
    // The same batch, split over the ranks.
    const std::size_t batch_size = options.batch / static_cast<std::size_t>(gz::size());
    if (batch_size == 0) throw Usage("--batch is less than a window for each rank", 2);
    Order order(training.size(), batch_size * static_cast<std::size_t>(gz::size()), options.seed);
    const auto own = static_cast<std::size_t>(gz::rank()) * batch_size;

    Model model(options.size, options.seed);
    Adam adam(model.parameters(), options.rate, options.steps);
    const auto parameters = gz::parameters_of(model.parameters());
    gz::broadcast_parameters(parameters);
    gz::DistributedOptimizer optimizer(adam, parameters);

    report.begin(options, options.batch * options.size.length);
    for (std::size_t step = 0; step < options.steps; ++step) {
        const auto windows = order.batch(step).subspan(own, batch_size);
        double loss = model.backward(training.batch(windows), optimizer.on_gradient());
        optimizer.step();
        gz::allreduce(loss, {.op = gz::ReduceOp::average});  // of the whole batch
        report.step(loss);
    }
    const gz::SamplerOptions each_once{.shuffle = false, .tail = gz::Tail::uneven};
    const auto windows = gz::DistributedSampler(test.size(), each_once).indices();
    double loss = 0;
    for (std::size_t i = 0; i < windows.size(); ++i)
        loss += model.loss(test.batch(std::span(windows).subspan(i, 1)));
    gz::allreduce(loss);
    report.say("%s\n", model.sample("The ", 200, options.seed).c_str());
    report.say("test_loss=%.4f\n", loss / static_cast<double>(test.size()));
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
