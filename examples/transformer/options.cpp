#include "options.hpp"

#include <CLI/CLI.hpp>

namespace transformer {

Options parse_options(int argc, char** argv) {
    Options options;
    auto& size = options.size;
    CLI::App app("Trains a small GPT on the bytes of English sayings, and lets it write");
    app.option_defaults()->always_capture_default();
    app.add_option("--steps", options.steps, "Batches to train with")
        ->check(CLI::Range(1, 10'000'000));
    app.add_option("--batch", options.batch, "Windows of text per step")
        ->check(CLI::Range(1, 65'536));
    app.add_option("--lr", options.rate, "Learning rate, after the first twentieth of all steps")
        ->check(CLI::Range(1e-6, 1.0));
    app.add_option("--seed", options.seed, "Seed of the initial weights and the order of windows");
    app.add_option("--length", size.length, "Bytes in a window")->check(CLI::Range(1, 4096));
    app.add_option("--width", size.width, "Numbers for each byte")->check(CLI::Range(1, 4096));
    app.add_option("--heads", size.heads, "Heads of attention, which divide the width")
        ->check(CLI::Range(1, 64));
    app.add_option("--layers", size.layers, "Blocks")->check(CLI::Range(1, 64));
    app.add_option("--data", options.data, "Directory of the sayings");
    app.add_option("--log-losses", options.log_losses, "Write the loss of every step to this file");
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        throw Usage(app.help(), 0);
    } catch (const CLI::ParseError& error) {
        throw Usage(std::string(error.what()) + " (try --help)", 2);
    }
    if (size.width % size.heads != 0) throw Usage("--heads must divide --width", 2);
    return options;
}

}  // namespace transformer
