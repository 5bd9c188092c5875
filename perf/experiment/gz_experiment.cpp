// gz-experiment: trains the same model on the same samples by one of several methods, and writes
// what each step took and brought.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <chrono>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "method.hpp"
#include "task.hpp"

namespace guozhuang::experiment {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Options {
    std::string method = "sync", slow, json;
    TaskOptions task;
    bool list = false;
};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

const MethodEntry& find(const std::string& name) {
    for (const auto& method : methods())
        if (method.name == name) return method;
    throw std::runtime_error(fmt::format("there is no method '{}'; --list names them", name));
}

/// RANK:FACTOR: the factor if this is the rank, otherwise 1.
double slowness_of(const std::string& slow) {
    if (slow.empty()) return 1;
    int slow_rank = 0;
    double factor = 0;
    char rest = 0;
    if (std::sscanf(slow.c_str(), "%d:%lf%c", &slow_rank, &factor, &rest) != 2 ||
        !(factor >= 1 && factor <= 1e6) || slow_rank < 0 || slow_rank >= size())
        throw std::runtime_error(
            fmt::format("--slow takes RANK:FACTOR, a rank below {} and a factor from 1, not '{}'",
                        size(), slow));
    return slow_rank == rank() ? factor : 1;
}

std::string hash_of(const std::vector<Parameter>& parameters) {
    std::uint64_t all = 0;
    for (const auto& parameter : parameters) all = std::rotl(all, 7) ^ hash(parameter.value);
    return fmt::format("{:016x}", all);
}

/// JSON lines, to a file or standard output, from the first rank.
class Lines {
public:
    explicit Lines(const std::string& path) {
        if (path.empty() || rank() > 0) return;
        file_.open(path, std::ios::app);
        if (!file_) throw std::runtime_error("cannot append to " + path);
    }
    void write(const Json& line) {
        if (rank() > 0) return;
        if (file_.is_open())
            file_ << line.dump() << std::endl;
        else
            fmt::print("{}\n", line.dump());
    }

private:
    std::ofstream file_;
};

/// The sums over all ranks.
Score score(Task& task, Share share) {
    auto score = task.score(share);
    std::array<double, 3> sums{score.loss, score.correct, score.samples};
    allreduce(sums);
    return {sums[0], sums[1], sums[2]};
}

void run(const Options& options) {
    const auto& entry = find(options.method);
    const Share share{static_cast<std::size_t>(rank()), static_cast<std::size_t>(size())};
    if (options.task.batch < share.of)
        throw std::runtime_error("--batch is less than a sample for each rank");
    auto task_options = options.task;
    task_options.steps = (options.task.steps + static_cast<std::size_t>(entry.passes) - 1) /
                         static_cast<std::size_t>(entry.passes);
    Lines lines(options.json);
    const auto task = make_task(task_options);
    const auto method = entry.make({*task, share, slowness_of(options.slow)});
    barrier();
    const auto before = traffic().bytes;
    const auto start = Clock::now();
    for (std::size_t step = 0; step < options.task.steps; ++step) {
        const double loss = method->step(step);
        lines.write(
            {{"kind", "step"}, {"step", step}, {"seconds", seconds_since(start)}, {"loss", loss}});
    }
    const double seconds = seconds_since(start);
    method->finish();
    auto bytes_sent = traffic().bytes - before;
    auto counters = method->counters();
    allreduce(bytes_sent);
    allreduce(counters.stale_max, {.op = ReduceOp::max});
    allreduce(counters.dropped);
    allreduce(counters.state_bytes, {.op = ReduceOp::max});
    check_consistent(task->parameters());
    const auto sums = score(*task, share);
    lines.write({{"kind", "end"},
                 {"method", options.method},
                 {"model", options.task.model},
                 {"ranks", size()},
                 {"accuracy", sums.correct / sums.samples},
                 {"loss", sums.loss / sums.samples},
                 {"seconds", seconds},
                 {"steps_per_second", static_cast<double>(options.task.steps) / seconds},
                 {"bytes_sent", bytes_sent},
                 {"bytes_per_rank_state", counters.state_bytes},
                 {"stale_max", counters.stale_max},
                 {"dropped", counters.dropped},
                 {"parameters_hash", hash_of(task->parameters())}});
}

/// Throws CLI::ParseError.
Options parse(CLI::App& app, int argc, char** argv) {
    Options options;
    app.option_defaults()->always_capture_default();
    app.add_flag("--list", options.list, "Name the methods, and where they are from");
    app.add_option("--method", options.method, "How the ranks train together");
    app.add_option("--model", options.task.model, "fashion: a perceptron; gpt: a transformer")
        ->check(CLI::IsMember({"fashion", "gpt"}));
    app.add_option("--steps", options.task.steps, "Batches")->check(CLI::Range(1, 10'000'000));
    app.add_option("--batch", options.task.batch, "Samples of all ranks together in a step")
        ->check(CLI::Range(1, 60'000));
    app.add_option("--lr", options.task.rate, "Learning rate; 0: the model's own")
        ->check(CLI::Range(0.0, 100.0));
    app.add_option("--seed", options.task.seed, "Seed of the weights and the order of samples");
    app.add_option("--slow", options.slow, "RANK:FACTOR makes backward of a rank slower");
    app.add_option("--data", options.task.data, "Directory of the data, if not Debian's");
    app.add_option("--json", options.json, "Append the lines to this file");
    app.parse(argc, argv);
    return options;
}

int main(int argc, char** argv) {
    CLI::App app("Trains the same model on the same samples by one of several methods");
    Options options;
    try {
        options = parse(app, argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error);
    }
    if (options.list) {
        for (const auto& [name, about, source, make, passes] : methods())
            fmt::print("{:14}{}{}{}\n", name, about, source.empty() ? "" : " - ", source);
        return 0;
    }
    try {
        Session session(&argc, &argv);
        run(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "gz-experiment: {}\n", error.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace guozhuang::experiment

int main(int argc, char** argv) {
    return guozhuang::experiment::main(argc, argv);
}
