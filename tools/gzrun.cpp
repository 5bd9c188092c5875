// gzrun: starts a program as the ranks of a job, by the launcher of the MPI that is there, and says
// how they ended.

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "gzrun_job.hpp"
#include "gzrun_launcher.hpp"
#include "gzrun_link.hpp"

namespace {

using Words = std::vector<std::string>;

/// Where the program begins in gzrun's arguments. Gives -np, which CLI11 takes for -n p, the form
/// that it reads.
Words::iterator find_program(Words& words) {
    auto word = words.begin();
    while (word != words.end() && word->starts_with('-')) {
        const bool alone = *word == "--label" || *word == "--dry-run" || *word == "--help" ||
                           *word == "-h" || word->find('=') != std::string::npos;
        if (*word == "-np") *word = "--np";
        if (*word++ == "--") break;
        if (!alone && word != words.end()) ++word;
    }
    return word;
}

void add_options(CLI::App& app, gzrun::Options& options, bool& dry_run) {
    app.add_option("-n,--np", options.ranks, "How many ranks; -np N will do")->required();
    app.add_option("-H,--host", options.hosts, "Hosts and how many ranks each takes: a:4,b:4");
    app.add_option("--min-np", options.least_ranks,
                   "How many ranks must return 0, for a program that goes on without ranks that "
                   "have died; without it, all")
        ->check(CLI::PositiveNumber);
    app.add_option("--mpirun", options.launcher,
                   "The launcher; without it, mpirun or mpiexec, whichever PATH has");
    app.add_option("--interface", options.interface,
                   "The network interface for MPI; for Open MPI also a network, 10.0.0.0/24");
    app.add_option("--grace", options.grace_s,
                   "Seconds for the other ranks to end by themselves after one has failed, or "
                   "after SIGINT, SIGTERM or SIGHUP")
        ->capture_default_str()
        ->check(CLI::Range(0, 1'000'000));
    app.add_option("--launcher-options", options.launcher_options,
                   "More options for the launcher, separated by spaces");
    app.add_flag("--label", options.label, "Begin each line of output with its rank");
    app.add_flag("--dry-run", dry_run, "Print the launcher's command line and run nothing");
}

void check(const gzrun::Options& options) {
    if (options.ranks < 1)
        throw gzrun::BadInput(fmt::format("-np {}: a job has at least 1 rank", options.ranks));
    if (options.program.empty()) throw gzrun::BadInput("no PROGRAM to run; --help explains");
    if (options.least_ranks > options.ranks)
        throw gzrun::BadInput(fmt::format("--min-np {}, but -np {} starts fewer ranks",
                                          options.least_ranks, options.ranks));
    if (options.hosts.empty()) return;
    if (const int slots = gzrun::slots_of(options.hosts); slots < options.ranks)
        throw gzrun::BadInput(fmt::format("-np {}, but -H {} takes {} ranks: write HOST:RANKS",
                                          options.ranks, options.hosts, slots));
}

int run(Words words) {
    CLI::App app{
        "Starts PROGRAM as the ranks of a job. Ends with 0 if all ranks returned 0, otherwise with "
        "the code of the rank that failed first (128 + signal if killed), which it names; 2 for "
        "wrong arguments or a program that cannot be run.",
        "gzrun"};
    app.footer("PROGRAM and its arguments follow the options: gzrun -np 4 ./train --epochs 3");
    gzrun::Options options;
    bool dry_run = false;
    add_options(app, options, dry_run);
    const auto program = find_program(words);
    options.program.assign(program, words.end());
    Words own(words.begin(), program);
    std::reverse(own.begin(), own.end());  // the order that CLI11 wants
    try {
        app.parse(own);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop) == 0 ? 0 : 2;
    }
    check(options);
    const auto launcher = gzrun::find_launcher(options.launcher);
    const auto shown = gzrun::quoted(gzrun::command_line(launcher, options, options.program));
    fmt::print(dry_run ? stdout : stderr, "{}{}\n", dry_run ? "" : "gzrun: ", shown);
    if (dry_run) return 0;
    gzrun::Job job(options);
    // Each rank is started by gzrun itself, which then knows how it ended.
    Words rank{std::filesystem::read_symlink("/proc/self/exe"), "--watch", job.contact(),
               launcher.rank_variable, std::to_string(options.least_ranks)};
    rank.insert(rank.end(), options.program.begin(), options.program.end());
    return job.run(gzrun::command_line(launcher, options, rank));
}

}  // namespace

int main(int argc, char** argv) {
    Words words(argv + std::min(argc, 1), argv + argc);
    try {
        if (words.size() > 4 && words[0] == "--watch") {
            setenv("GZRUN", words[3].c_str(), 1);  // tells the library whether survivors may go on
            return gzrun::watch_rank(words[1], words[2], {words.begin() + 4, words.end()});
        }
        return run(std::move(words));
    } catch (const gzrun::BadInput& error) {
        fmt::print(stderr, "gzrun: {}\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gzrun: {}\n", error.what());
        return 1;
    }
}
