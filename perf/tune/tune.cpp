#include "tune/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <guozhuang/operations.hpp>
#include <guozhuang/session.hpp>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

/// A value is written only if its time is at most this share of the default's.
constexpr double worth_it = 0.95;

/// What is timed under each value of a variable, several times a round.
struct Load {
    std::string name;
    int times;
    std::function<void(Session&)> run;
};

struct Variable {
    std::string name;
    std::string usual;  ///< the default
    std::vector<std::string> others;
    std::vector<Load> loads;
};

Load one_allreduce(std::size_t bytes) {
    auto memory = std::make_shared<std::vector<float>>(bytes / sizeof(float));
    const int times = bytes < std::size_t{1} << 20 ? 100 : 5;
    return {fmt::format("allreduce of {} KiB", bytes / 1024), times, [memory](Session& session) {
                allreduce(*memory, {.name = "tune", .session = &session});
            }};
}

/// As a trainer does without a plan: the library fuses what is ready.
Load many_allreduces(int count, std::size_t bytes) {
    auto memory = std::make_shared<std::vector<std::vector<float>>>(
        static_cast<std::size_t>(count), std::vector<float>(bytes / sizeof(float)));
    return {
        fmt::format("{} at once of {} KiB", count, bytes / 1024), 5, [memory](Session& session) {
            std::vector<Handle> handles;
            for (auto& tensor : *memory)
                handles.push_back(allreduce_async(
                    tensor, {.name = fmt::format("tune {}", handles.size()), .session = &session}));
            for (const auto& handle : handles) handle.wait();
        }};
}

std::vector<Variable> variables() {
    constexpr std::size_t kib = 1024;
    return {
        {"GUOZHUANG_SMALL_BYTES",
         "32768",
         {"8192", "16384", "65536", "131072"},
         {one_allreduce(8 * kib), one_allreduce(16 * kib), one_allreduce(32 * kib),
          one_allreduce(64 * kib), one_allreduce(128 * kib)}},
        {"GUOZHUANG_SEGMENT_BYTES",
         "262144",
         {"65536", "131072", "524288", "1048576"},
         {one_allreduce(256 * kib), one_allreduce(1024 * kib), one_allreduce(4096 * kib),
          one_allreduce(16384 * kib)}},
        {"GUOZHUANG_FUSION_BYTES",
         "1048576",
         {"65536", "262144", "4194304"},
         {many_allreduces(500, 1 * kib), many_allreduces(64, 64 * kib)}},
    };
}

/// Seconds of each load under each value.
using Samples = std::map<std::string, std::vector<std::vector<double>>>;

void sample(const MpiJob& job, const Variable& variable, const std::string& value,
            std::vector<std::vector<double>>& samples) {
    ::setenv(variable.name.c_str(), value.c_str(), 1);
    Session session;
    samples.resize(variable.loads.size());
    for (std::size_t i = 0; i < variable.loads.size(); ++i) {
        const auto& load = variable.loads[i];
        load.run(session);  // allocates scratch and learns names
        std::vector<double> seconds;
        for (int time = 0; time < load.times; ++time) {
            job.align();
            const auto start = Clock::now();
            load.run(session);
            seconds.push_back(seconds_since(start));
        }
        seconds = job.max(std::move(seconds));
        samples[i].insert(samples[i].end(), seconds.begin(), seconds.end());
    }
    session.close();
    ::unsetenv(variable.name.c_str());
}

/// The geometric mean of the ratios of medians to the default's.
double ratio_of(const std::vector<std::vector<double>>& value,
                const std::vector<std::vector<double>>& usual) {
    double sum = 0;
    for (std::size_t i = 0; i < value.size(); ++i)
        sum += std::log(quantile(value[i], 0.5) / quantile(usual[i], 0.5));
    return std::exp(sum / static_cast<double>(value.size()));
}

/// Lines for the file: comments, and an assignment if a value is worth it.
std::string tuned(const MpiJob& job, const Variable& variable, int rounds, JsonLines& lines) {
    std::vector<std::string> values{variable.usual};
    values.insert(values.end(), variable.others.begin(), variable.others.end());
    Samples samples;
    for (int round = 0; round < rounds; ++round) {
        for (const auto& value : values) sample(job, variable, value, samples[value]);
        std::ranges::rotate(values, values.begin() + 1);  // each runs first in some round
    }
    std::string text = fmt::format("# {}: time of each value, of the default's {}:", variable.name,
                                   variable.usual),
                best = variable.usual;
    double least = 1;
    for (const auto& value : variable.others) {
        const auto ratio = ratio_of(samples.at(value), samples.at(variable.usual));
        text += fmt::format(" {}: {:.2f}", value, ratio);
        lines.write({{"kind", "tune"},
                     {"variable", variable.name},
                     {"value", value},
                     {"default", variable.usual},
                     {"ratio", ratio}});
        if (ratio < least) best = value, least = ratio;
    }
    text += "\n";
    return least < worth_it ? text + fmt::format("{}={}\n", variable.name, best) : text;
}

}  // namespace

void tune(const MpiJob& job, const TuneOptions& options, JsonLines& lines) {
    std::ofstream file;
    job.all_or_none([&] {
        if (!job.first()) return;
        file.open(options.output);
        if (!file) throw std::runtime_error("cannot write " + options.output.string());
    });
    ::unsetenv("GUOZHUANG_TUNE_FILE");
    std::string text = fmt::format(
        "# Written by gz-perf tune with {} ranks; GUOZHUANG_TUNE_FILE names it to the library.\n",
        job.size());
    for (const auto& variable : variables()) text += tuned(job, variable, options.rounds, lines);
    if (!job.first()) return;
    fmt::print("{}", text);
    file << text << std::flush;
}

}  // namespace guozhuang::perf
