#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace fashion {

/// The command line.
struct Options {
    std::size_t epochs = 2;
    std::size_t batch = 128;
    float rate = 0.05F;
    std::uint64_t seed = 7;
    std::size_t steps = 0;  ///< at most so many an epoch; 0 for all
    std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
    /// The file for the loss of every step, one a line; empty for none.
    std::filesystem::path log_losses;
};

/// Ends the program before it trains: what() is the help text (code 0) or a complaint.
struct Usage : std::runtime_error {
    Usage(const std::string& text, int exit_code) : std::runtime_error(text), code(exit_code) {}
    int code;
};

/// `add_more`: options of the program's own. Throws Usage.
Options parse_options(
    int argc, char** argv, const std::function<void(CLI::App&)>& add_more = [](CLI::App&) {});

}  // namespace fashion
