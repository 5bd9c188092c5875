// Entry points for libFuzzer, and helpers that the programs share.
#include "fuzz/fuzz.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>

#include "base/log.hpp"

namespace guozhuang::fuzz {

void require(bool holds, std::string_view what) {
    if (holds) return;
    fmt::print(stderr, "does not hold: {}\n", what);
    std::abort();
}

Input take(Input& input, std::size_t count) {
    const auto taken = input.first(std::min(count, input.size()));
    input = input.subspan(taken.size());
    return taken;
}

unsigned choice(Input& input) {
    const auto byte = take(input, 1);
    return byte.empty() ? 0 : std::to_integer<unsigned>(byte.front());
}

Message next_message(Input& input) {
    const auto chosen = choice(input);
    const auto low = choice(input);
    return {chosen, take(input, low + 256 * choice(input))};
}

void append_message(Seed& seed, unsigned choice, Input bytes) {
    for (const auto byte : {choice, static_cast<unsigned>(bytes.size()) % 256,
                            static_cast<unsigned>(bytes.size()) / 256})
        seed.push_back(static_cast<std::byte>(byte));
    seed.insert(seed.end(), bytes.begin(), bytes.end());
}

namespace {

void write_seeds(const std::filesystem::path& directory) {
    int number = 0;
    for (const auto& seed : seeds()) {
        std::ofstream file(directory / fmt::format("seed{}", number++), std::ios::binary);
        file << text_of(seed);
    }
}

}  // namespace
}  // namespace guozhuang::fuzz

// Names that libFuzzer gives. NOLINTBEGIN(readability-identifier-naming)

/// The corpus, if there is one, gets the seeds before libFuzzer reads it.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
    guozhuang::base::set_log_level(guozhuang::LogLevel::off);
    for (const char* argument : std::span(*argv, static_cast<std::size_t>(*argc)))
        if (std::filesystem::is_directory(argument)) guozhuang::fuzz::write_seeds(argument);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    guozhuang::fuzz::decode(std::as_bytes(std::span(data, size)));
    return 0;
}

// NOLINTEND(readability-identifier-naming)
