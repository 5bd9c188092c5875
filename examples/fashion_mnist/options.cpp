#include "options.hpp"

#include <CLI/CLI.hpp>

namespace fashion {

Options parse_options(int argc, char** argv, const std::function<void(CLI::App&)>& add_more) {
    Options options;
    CLI::App app("Trains a small network on Fashion-MNIST");
    app.option_defaults()->always_capture_default();
    app.add_option("--epochs", options.epochs, "Passes over the training set")
        ->check(CLI::Range(1, 100'000));
    app.add_option("--batch", options.batch, "Samples per step")->check(CLI::Range(1, 60'000));
    app.add_option("--lr", options.rate,
                   "Learning rate; without a framework that of the first step, falling to 0")
        ->check(CLI::Range(1e-6, 100.0));
    app.add_option("--seed", options.seed, "Seed of the initial weights and the order of samples");
    app.add_option("--steps", options.steps, "At most so many steps per epoch; 0: all");
    app.add_option("--data", options.data, "Directory of the data set");
    app.add_option("--log-losses", options.log_losses, "Write the loss of every step to this file");
    add_more(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        throw Usage(app.help(), 0);
    } catch (const CLI::ParseError& error) {
        throw Usage(std::string(error.what()) + " (try --help)", 2);
    }
    return options;
}

}  // namespace fashion
