// gz-budget: what one lone allreduce costs, station by station of docs/way_of_a_gradient.md, in
// time and in allocations.
#include <fmt/format.h>

#include <chrono>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <string>
#include <vector>

#include "budget/way.hpp"
#include "json_lines.hpp"
#include "topology/machine.hpp"

namespace guozhuang::perf {
namespace {

struct Options {
    std::size_t bytes = 4;
    std::string name = "layer1.0.conv1.weight";
    std::size_t operations = 1000;
    int rounds = 20;
    std::string json;
};

/// The medians of the operations' times and allocations; and the rest. On a busy machine another
/// thread takes part in some operations, which then allocate more or less than the others.
Costs summary_of(const std::vector<Costs>& operations) {
    Costs summary;
    auto& rest = summary[Station::rest];
    for (std::size_t i = 0; i < summary.size(); ++i) {
        const Station station{i};
        if (station == Station::rest) continue;
        std::vector<double> ns, allocations;
        for (auto costs : operations) {
            ns.push_back(costs[station].ns);
            allocations.push_back(costs[station].allocations);
        }
        auto& cost = summary[station];
        cost = {quantile(ns, 0.5), quantile(allocations, 0.5)};
        if (station == Station::eager) continue;
        const double sign = station == Station::whole ? 1 : -1;
        rest.ns += sign * cost.ns;
        rest.allocations += sign * cost.allocations;
    }
    return summary;
}

/// The costs on this rank in each round, in which stations and whole take turns. Collective.
std::vector<Costs> measure(const Options& options) {
    std::vector<float> numbers(options.bytes / sizeof(float));
    const TensorView tensor(numbers);
    const AllreduceOptions named{.name = options.name};
    // A call with a timeout is not run eagerly.
    const AllreduceOptions negotiated{.name = options.name, .timeout = std::chrono::hours(1)};
    Stopwatch watch;
    Way way(tensor, options.name, watch);
    std::vector<Costs> rounds;
    for (int round = -1; round < options.rounds; ++round) {
        std::vector<Costs> operations(options.operations);
        for (auto& costs : operations) {
            way.run();
            costs = watch.take();
        }
        for (auto& costs : operations) {
            watch.start();
            allreduce(tensor, negotiated);
            watch.lap(Station::whole);
            costs[Station::whole] = watch.take()[Station::whole];
        }
        for (auto& costs : operations) {
            watch.start();
            allreduce(tensor, named);
            watch.lap(Station::eager);
            costs[Station::eager] = watch.take()[Station::eager];
        }
        if (round >= 0) rounds.push_back(summary_of(operations));  // the first one warms up
    }
    return rounds;
}

Json json_of(std::vector<Costs> rounds, bool has_messages) {
    Json stations = Json::object();
    for (std::size_t i = 0; i < station_names.size(); ++i) {
        if (Station{i} == Station::message && !has_messages) continue;
        std::vector<double> ns, allocations;
        for (auto& round : rounds) {
            ns.push_back(round[Station{i}].ns);
            allocations.push_back(round[Station{i}].allocations);
        }
        stations[station_names[i]] = {{"ns", quantile(ns, 0.5)},
                                      {"lowest_ns", quantile(ns, 0)},
                                      {"highest_ns", quantile(ns, 1)},
                                      {"allocations", quantile(allocations, 0.5)}};
    }
    return stations;
}

std::string cpu_model() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "unknown CPU";
}

void print(std::size_t rank, const Json& stations) {
    fmt::print("\nrank {:<5} {:>8} {:>19} {:>12}\n", rank, "ns", "lowest-highest", "allocations");
    for (const auto& [station, cost] : stations.items())
        fmt::print("{:<10} {:>8.0f} {:>9.0f}-{:<9.0f} {:>12.2f}\n", station,
                   cost["ns"].get<double>(), cost["lowest_ns"].get<double>(),
                   cost["highest_ns"].get<double>(), cost["allocations"].get<double>());
}

/// Measures, and reports of all ranks. Collective.
void report(const MpiJob& job, const Options& options) {
    JsonLines lines(job, options.json);
    const auto flag_us = job.flag_round_trip_us();
    const auto cpu = fmt::format("{} ({})", cpu_model(), describe(topology::this_machine()));
    const auto texts = job.gather(json_of(measure(options), job.size() > 1).dump());
    if (!job.first()) return;
    fmt::print("# allreduce '{}' of {} bytes; {} rounds of {} operations\n# {}", options.name,
               options.bytes, options.rounds, options.operations, cpu);
    if (flag_us > 0) fmt::print("; flag from core to core and back {:.0f} ns", flag_us * 1e3);
    fmt::print("\n");
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
        const auto stations = Json::parse(texts[rank]);
        print(rank, stations);
        lines.write({{"kind", "budget"},
                     {"rank", rank},
                     {"ranks", job.size()},
                     {"cpu", cpu},
                     {"flag_round_trip_us", flag_us},
                     {"name", options.name},
                     {"bytes", options.bytes},
                     {"stations", stations}});
    }
}

int run(const Options& options, int argc, char** argv) {
    const MpiJob job(&argc, &argv);
    try {
        Session session(&argc, &argv);
        report(job, options);
        session.close();
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gz-budget: rank {}: {}\n", job.rank(), error.what());
        job.abort();
    }
}

}  // namespace
}  // namespace guozhuang::perf

int main(int argc, char** argv) try {
    guozhuang::perf::Options options;
    CLI::App app("Says what one allreduce costs, station by station of its way.", "gz-budget");
    app.footer("Example: mpirun -np 2 gz-budget --bytes 4");
    app.option_defaults()->always_capture_default();
    app.add_option("--bytes", options.bytes, "of the tensor (f32); K, M, G are binary")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(4, 1 << 30));
    app.add_option("--name", options.name, "of the operation");
    app.add_option("--operations", options.operations, "of a round")->check(CLI::Range(1, 1000000));
    app.add_option("--rounds", options.rounds, "in which the stations and the whole take turns")
        ->check(CLI::Range(1, 10000));
    app.add_option("--json", options.json, "append the results to this file, a JSON object a line")
        ->type_name("FILE");
    CLI11_PARSE(app, argc, argv);
    options.bytes = options.bytes / sizeof(float) * sizeof(float);
    return guozhuang::perf::run(options, argc, argv);
} catch (const std::exception& error) {
    std::fprintf(stderr, "gz-budget: %s\n", error.what());
    return 2;
}
