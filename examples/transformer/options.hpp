#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "model.hpp"

namespace transformer {

/// The command line.
struct Options {
    std::size_t steps = 400;
    std::size_t batch = 16;
    float rate = 3e-3F;
    std::uint32_t seed = 7;
    Size size;
    std::filesystem::path data = "/usr/share/games/fortunes";
    std::filesystem::path log_losses;  ///< a file for the loss of every step, one a line
};

/// Ends the program before it trains: what() is the help text (code 0) or a complaint.
struct Usage : std::runtime_error {
    Usage(const std::string& text, int exit_code) : std::runtime_error(text), code(exit_code) {}
    int code;
};

/// Throws Usage.
Options parse_options(int argc, char** argv);

}  // namespace transformer
