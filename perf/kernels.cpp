// gz-kernels: measures how fast the loops of host reductions move memory, beside memcpy. Other
// tests check their results for every dtype.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <guozhuang/types.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/host/host_reduce.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

struct Options {
    std::size_t bytes = std::size_t{1} << 20;
    int rounds = 20;
    double seconds = 0.005;
    std::string json;
};

/// One loop over `bytes` of elements, and how many bytes it reads and writes.
struct Loop {
    std::string name;
    DType dtype;
    std::size_t moved;
    std::function<void()> run;
};

/// Memory for elements or partials, which are at most twice as wide. Every byte is 1.
class Memory {
public:
    explicit Memory(std::size_t bytes) : bytes_(2 * bytes, std::byte{1}) {}
    std::span<std::byte> first(std::size_t bytes) { return std::span(bytes_).first(bytes); }

private:
    std::vector<std::byte> bytes_;
};

struct Memories {
    explicit Memories(std::size_t bytes)
        : left(bytes), right(bytes), into(bytes), third(bytes), fourth(bytes) {}
    Memory left, right, into, third, fourth;
};

std::vector<Loop> loops_of(DType dtype, std::size_t bytes, Memories& memories) {
    const auto op = dtype == DType::boolean ? ReduceOp::max : ReduceOp::sum;
    const auto kernels = device::kernels_for(dtype, op);
    const auto left = memories.left.first(bytes), right = memories.right.first(bytes),
               into = memories.into.first(bytes);
    const auto partial_bytes = bytes / size_of(dtype) * device::partial_size_of(dtype);
    const auto partials = memories.into.first(partial_bytes);
    std::vector<Loop> loops{
        {"reduce 2", dtype, 3 * bytes, [=] { kernels.combine(into, left, right); }}};
    const std::vector<std::span<const std::byte>> four{left, right, memories.third.first(bytes),
                                                       memories.fourth.first(bytes)};
    loops.push_back(
        {"reduce 4", dtype, 5 * bytes,
         [=, reduce = device::HostReduce({op, dtype, 1})] { reduce.combine_tree(into, four); }});
    if (partial_bytes != bytes) {
        loops.push_back(
            {"cast to f32", dtype, bytes + partial_bytes, [=] { kernels.widen(partials, left); }});
        loops.push_back({"cast from f32", dtype, bytes + partial_bytes,
                         [=] { kernels.narrow(left, partials, {}); }});
    }
    if (is_floating(dtype))
        loops.push_back(
            {"scale", dtype, 2 * bytes, [=] { device::scale(dtype, left, 1.0000001); }});
    return loops;
}

/// Seconds of one run: the mean of as many runs as fill the time.
double time_of(const Loop& loop, double seconds) {
    const auto start = Clock::now();
    int runs = 0;
    do {
        loop.run();
        ++runs;
    } while (seconds_since(start) < seconds);
    return seconds_since(start) / runs;
}

void measure(const Options& options) {
    Memories memories(options.bytes);
    const auto from = memories.left.first(options.bytes), to = memories.into.first(options.bytes);
    const Loop copy{"memcpy", DType::u8, 2 * options.bytes,
                    [=] { std::memcpy(to.data(), from.data(), from.size()); }};
    std::ofstream json;
    if (!options.json.empty()) json.open(options.json, std::ios::app);
    if (!json) throw std::runtime_error("cannot append to " + options.json);
    fmt::print(
        "# {} bytes of elements; bytes read and written in GB/s, of memcpy at the same time; "
        "medians of {} rounds\n",
        options.bytes, options.rounds);
    fmt::print("{:>10} {:<14}{:>8}{:>10}{:>8}\n", "dtype", "loop", "GB/s", "memcpy", "ratio");
    for (const auto dtype : all_dtypes) {
        for (const auto& loop : loops_of(dtype, options.bytes, memories)) {
            std::vector<double> ours, theirs;
            for (int round = 0; round < options.rounds; ++round) {
                ours.push_back(time_of(loop, options.seconds));
                theirs.push_back(time_of(copy, options.seconds));
            }
            const auto speed = static_cast<double>(loop.moved) / quantile(ours, 0.5) / 1e9;
            const auto memcpy_speed = static_cast<double>(copy.moved) / quantile(theirs, 0.5) / 1e9;
            fmt::print("{:>10} {:<14}{:>8.1f}{:>10.1f}{:>8.2f}\n", name_of(dtype), loop.name, speed,
                       memcpy_speed, speed / memcpy_speed);
            if (json.is_open())
                json << nlohmann::ordered_json{{"kind", "kernel"},
                                               {"dtype", name_of(dtype)},
                                               {"loop", loop.name},
                                               {"bytes", options.bytes},
                                               {"gb_per_s", speed},
                                               {"memcpy_gb_per_s", memcpy_speed}}
                            .dump()
                     << '\n';
        }
    }
}

}  // namespace
}  // namespace guozhuang::perf

int main(int argc, char** argv) try {
    guozhuang::perf::Options options;
    CLI::App app("Measures the loops of host reductions beside memcpy, on one core.");
    app.add_option("--bytes", options.bytes, "of elements; K, M, G are binary")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(64, 1 << 30));
    app.add_option("--rounds", options.rounds, "in which each loop and memcpy take turns")
        ->check(CLI::Range(1, 10000));
    app.add_option("--seconds", options.seconds, "for which each runs in a round")
        ->check(CLI::Range(0.0, 60.0));
    app.add_option("--json", options.json,
                   "append the results to this file, one JSON object a line")
        ->type_name("FILE");
    CLI11_PARSE(app, argc, argv);
    options.bytes = options.bytes / 64 * 64;
    guozhuang::perf::measure(options);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "gz-kernels: %s\n", error.what());
    return 2;
}
