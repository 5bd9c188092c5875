// Trains a small GPT on the bytes of English sayings, and lets it write.
#include "adam.hpp"
#include "model.hpp"
#include "options.hpp"
#include "report.hpp"
#include "text.hpp"

#include <exception>
#include <numeric>
#include <span>
#include <vector>

using namespace transformer;

static void train(const Options& options, Report& report) {
    const Sayings sayings = load_sayings(options.data);
    const auto held_out = sayings.size() / 10;
    const Windows training(part_of(sayings, held_out, sayings.size()), options.size.length);
    const Windows test(part_of(sayings, 0, held_out), options.size.length);
    const std::size_t batch_size = options.batch;
    Order order(training.size(), batch_size, options.seed);

    Model model(options.size, options.seed);
    Adam adam(model.parameters(), options.rate, options.steps);

    report.begin(options, options.batch * options.size.length);
    for (std::size_t step = 0; step < options.steps; ++step) {
        const double loss = model.backward(training.batch(order.batch(step)));
        adam.step();
        report.step(loss);
    }
    std::vector<std::size_t> windows(test.size());
    std::iota(windows.begin(), windows.end(), std::size_t{0});
    double loss = 0;
    for (std::size_t i = 0; i < windows.size(); ++i)
        loss += model.loss(test.batch(std::span(windows).subspan(i, 1)));
    report.say("%s\n", model.sample("The ", 200, options.seed).c_str());
    report.say("test_loss=%.4f\n", loss / static_cast<double>(test.size()));
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
