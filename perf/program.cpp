#include "program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <guozhuang/session.hpp>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "collectives/algorithms.hpp"
#include "idle/idle.hpp"
#include "json_lines.hpp"
#include "mpi_job.hpp"
#include "replay/replay.hpp"
#include "sweep/sweep.hpp"

namespace guozhuang::perf {
namespace {

constexpr int not_as_asked = 2;  // the exit code of a refusal

/// The command line, and what it asks for. Running it returns the number of errors found.
struct Request {
    std::string_view program;
    std::span<const BaselineKind> baselines;  // to choose from
    std::string json;
    SweepOptions sweep;
    ReplayOptions replay;
    IdleOptions idle;
    std::function<std::uint64_t(const MpiJob&, JsonLines&)> run;
};

/// An option whose values are enumerators, spelled as by name_of().
template <class T, class Range>
CLI::Option* add_named(CLI::App& command, const std::string& option, T& value, const Range& all,
                       const std::string& text) {
    std::map<std::string, T> by_name;
    for (const T each : all) by_name.emplace(name_of(each), each);
    std::vector<std::string> names;
    for (const auto& [name, each] : by_name) names.push_back(name);
    const auto set = [&value, by_name](const std::string& name) { value = by_name.at(name); };
    return command.add_option_function<std::string>(option, set, text)
        ->check(CLI::IsMember(names))
        ->default_str(std::string(name_of(value)));
}

/// Ends a --help with a command line to copy.
void add_example(CLI::App& command, const Request& request, std::string_view arguments) {
    command.footer(fmt::format("Example: mpirun -np 2 {} {} {}", request.program,
                               command.get_name(), arguments));
}

void add_output(CLI::App& command, Request& request) {
    command
        .add_option("--json", request.json,
                    "append the results to this file, one JSON object a line")
        ->type_name("FILE");
}

/// For the options of a sweep or a replay.
template <class Options>
void add_memory(CLI::App& command, Options& options) {
    auto* const memory = add_named(command, "--memory", options.memory, host_memory_kinds,
                                   "where the tensors live on the host");
    const auto set = [&options](const std::string&) {
        options.device = DeviceKind::cuda;
        options.memory = MemoryKind::device;
    };
    command.add_option_function<std::string>("--device", set, "the tensors live on it")
        ->check(CLI::IsMember({name_of(DeviceKind::cuda)}))
        ->excludes(memory);
}

void add_watch(CLI::App& command, bool& watch) {
    command.add_flag(
        "--watch", watch,
        "to compare MPIs on one host: only the main thread may call MPI, operations start from "
        "flags "
        "instead of MPI's barrier, and what other programs disturbed is measured again");
}

void add_baselines(CLI::App& command, std::vector<const BaselineKind*>& chosen,
                   std::span<const BaselineKind> baselines) {
    std::vector<std::string> names;
    for (const auto& baseline : baselines) names.emplace_back(baseline.name);
    const auto choose = [&chosen, baselines](const std::set<std::string>& wanted) {
        for (const auto& name : wanted)
            chosen.push_back(&*std::ranges::find(baselines, name, &BaselineKind::name));
    };
    command
        .add_option_function<std::set<std::string>>("--peer", choose,
                                                    "also measure this, in turns; may be repeated")
        ->check(CLI::IsMember(names))
        ->allow_extra_args(false);
}

void add_sizes(CLI::App& command, SweepOptions& sweep) {
    const CLI::Range sizes(std::size_t{1}, std::size_t{1} << 40);
    command.add_option("--min-bytes", sweep.min_bytes, "smallest size; K, M, G are binary")
        ->transform(CLI::AsSizeValue(false))
        ->default_str("4")
        ->check(sizes);
    command.add_option("--max-bytes", sweep.max_bytes, "largest size")
        ->transform(CLI::AsSizeValue(false))
        ->default_str("256M")
        ->check(sizes);
    command.add_option("--factor", sweep.factor, "from one size to the next")
        ->capture_default_str()
        ->check(CLI::Range(2, 1024));
    add_named(command, "--dtype", sweep.dtype, all_dtypes, "element type");
    command.add_flag("--check", sweep.check,
                     "verify every element of every result; exit with 1 if any of ours is wrong");
}

std::vector<std::string> algorithm_names() {
    std::vector<std::string> names;
    for (const auto& row : selection::algorithms)
        if (row.by_name) names.emplace_back(row.name);
    return names;
}

void add_sweep(CLI::App& app, Request& request, Collective collective) {
    auto& command =
        *app.add_subcommand(std::string(name_of(collective)), "time it over a range of sizes");
    auto& sweep = request.sweep;
    if (collective != Collective::barrier) {
        add_sizes(command, sweep);
        add_memory(command, sweep);
    }
    if (reduces(collective)) add_named(command, "--op", sweep.op, all_reduce_ops, "reduction");
    if (collective == Collective::allreduce)
        command.add_option("--algorithm", sweep.algorithm, "the library's")
            ->capture_default_str()
            ->envname("GUOZHUANG_ALGORITHM")
            ->check(CLI::IsMember(algorithm_names()));
    auto* const seconds =
        command.add_option("--seconds", sweep.seconds, "time for each size, all series together")
            ->capture_default_str();
    auto* const iterations = command.add_option(
        "--iterations", sweep.iterations,
        "of each series, whatever time that takes; without it, as many as fit --seconds");
    seconds->check(CLI::Range(0.001, 86400.0));
    iterations->check(CLI::Range(1, 1'000'000))->excludes(seconds);
    command
        .add_option("--beside", sweep.beside,
                    "this many busy threads on each host, as of another program; also shows means, "
                    "and a hop through pipes")
        ->check(CLI::Range(0, 1024));
    auto* const back_to_back =
        command.add_flag("--back-to-back", sweep.back_to_back,
                         "time rounds of operations without a barrier before each operation");
    for (const auto* other : {"--beside", "--check"})
        if (auto* const option = command.get_option_no_throw(other)) back_to_back->excludes(option);
    add_watch(command, sweep.watch);
    add_baselines(command, sweep.baselines, request.baselines);
    add_example(
        command, request,
        collective == Collective::barrier ? "--peer mpi" : "--max-bytes 64M --peer mpi --check");
    add_output(command, request);
    command.callback([&request, collective] {
        request.sweep.collective = collective;
        if (collective == Collective::allreduce)
            ::setenv("GUOZHUANG_ALGORITHM", request.sweep.algorithm.c_str(), 1);
        request.run = [&request](const MpiJob& job, JsonLines& lines) {
            return perf::sweep(job, request.sweep, lines);
        };
    });
}

void add_replay(CLI::App& app, Request& request) {
    auto& command = *app.add_subcommand("replay", "time the communication of a training step");
    command
        .add_option("--set", request.replay.set,
                    "gradient set: a JSON file, or resnet50, bert_base, gpt2, vgg16, tiny1000")
        ->required();
    command.add_option("--steps", request.replay.steps, "timed steps of each series")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000));
    command.add_flag("--calls", request.replay.calls,
                     "also measure one asynchronous call for each gradient");
    add_memory(command, request.replay);
    add_watch(command, request.replay.watch);
    add_baselines(command, request.replay.baselines, request.baselines);
    add_example(command, request, "--set resnet50 --peer mpi");
    add_output(command, request);
    command.callback([&request] {
        request.run = [&request](const MpiJob& job, JsonLines& lines) {
            replay(job, request.replay, lines);
            return std::uint64_t{0};
        };
    });
}

void add_idle(CLI::App& app, Request& request) {
    auto& command = *app.add_subcommand("idle", "measure the CPU time of an idle job");
    command.add_option("--seconds", request.idle.seconds, "how long to look")
        ->capture_default_str()
        ->check(CLI::Range(0.001, 86400.0));
    command.add_flag("--pending", request.idle.pending, "with one unmatched operation outstanding");
    command.add_flag("--threads", request.idle.threads, "list the threads");
    add_example(command, request, "--pending");
    add_output(command, request);
    command.callback([&request] {
        request.run = [&request](const MpiJob& job, JsonLines& lines) {
            idle(job, request.idle, lines);
            return std::uint64_t{0};
        };
    });
}

/// Parses on all ranks, prints on the first. Empty: go on; else the exit code.
std::optional<int> parse(const MpiJob& job, int argc, char** argv, Request& request) {
    CLI::App app("Measures guozhuang beside its peers; run it under mpirun.",
                 std::string(request.program));
    app.require_subcommand(1);
    app.footer(
        fmt::format("Example: mpirun -np 2 {0} allreduce --max-bytes 64M --peer mpi --check\n{0} "
                    "COMMAND --help says what a command takes.",
                    request.program));
    for (const auto collective : all_collectives) add_sweep(app, request, collective);
    add_replay(app, request);
    add_idle(app, request);
    std::ostringstream out, err;
    try {
        app.parse(argc, argv);
        return std::nullopt;
    } catch (const CLI::ParseError& stop) {
        const int code = app.exit(stop, out, err);
        if (job.first()) fmt::print("{}", out.str()), fmt::print(stderr, "{}", err.str());
        return code == 0 ? EXIT_SUCCESS : not_as_asked;
    }
}

int measure(MpiJob& job, const Request& request, const std::string& arguments) {
    try {
        if (request.sweep.watch || request.replay.watch) job.align_in_memory();
        JsonLines lines(job, request.json);
        lines.write(run_line(job, arguments));
        return request.run(job, lines) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    } catch (const Refusal& refusal) {
        if (job.first()) fmt::print(stderr, "{}: {}\n", request.program, refusal.what());
        return not_as_asked;
    }
}

int run(MpiJob& job, Request& request, int argc, char** argv) {
    if (const auto code = parse(job, argc, argv, request)) return *code;
    std::string arguments;
    for (int i = 1; i < argc; ++i) arguments += (i > 1 ? " " : "") + std::string(argv[i]);
    Session session(&argc, &argv);
    const int code = measure(job, request, arguments);
    session.close();
    return code;
}

}  // namespace

int run_program(std::string_view name, std::span<const BaselineKind> baselines, int argc,
                char** argv) {
    // Options are read when MPI runs, but this one says how it is started.
    const bool watch = std::ranges::count(std::span(argv, static_cast<std::size_t>(argc)),
                                          std::string_view("--watch")) > 0;
    MpiJob job(&argc, &argv, watch ? MpiJob::Callers::main : MpiJob::Callers::any);
    try {
        Request request;
        request.program = name;
        request.baselines = baselines;
        return run(job, request, argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: rank {}: {}\n", name, job.rank(), error.what());
        job.abort();
    }
}

}  // namespace guozhuang::perf
