// gz-timeline: puts the timelines of a job's ranks together into one trace for ui.perfetto.dev or
// chrome://tracing, or sums them up.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "timeline_summary.hpp"
#include "timeline_trace.hpp"

namespace {

void write_merged(std::ostream& out, const std::vector<timeline::Trace>& traces) {
    const char* separator = "[\n";
    for (const auto& trace : traces) {
        for (const auto& event : trace.events) {
            out << separator
                << event.dump(-1, ' ', false, timeline::Json::error_handler_t::replace);
            separator = ",\n";
        }
    }
    out << "\n]\n" << std::flush;
    if (!out) throw std::runtime_error("the merged trace cannot be written");
}

void work(const std::vector<std::string>& paths, const std::string& output, bool summary) {
    std::vector<timeline::Trace> traces;
    for (const auto& path : paths)
        for (const auto& file : timeline::files_of(path)) traces.push_back(timeline::read(file));
    timeline::align(traces);
    for (const auto& line : timeline::remarks(traces))
        fmt::print(stderr, "gz-timeline: {}\n", line);
    if (summary) fmt::print("{}", timeline::summary(traces));
    if (!output.empty()) {
        std::ofstream file(output);
        write_merged(file, traces);
    } else if (!summary) {
        write_merged(std::cout, traces);
    }
}

int run(int argc, char** argv) {
    CLI::App app{
        "Merges the timelines that the ranks of a job have recorded (GUOZHUANG_TIMELINE, "
        "start_timeline) into one trace, which "
        "https://ui.perfetto.dev and chrome://tracing open."};
    std::vector<std::string> paths;
    std::string output;
    bool summary = false;
    app.add_option("paths", paths, "A directory with rank*.json in it, or such files")->required();
    app.add_option("-o,--output", output, "Where to write the trace; without it, standard output");
    app.add_flag("--summary", summary,
                 "Print a table instead: where the time goes, and who is late");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop) == 0 ? 0 : 2;
    }
    work(paths, output, summary);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const nlohmann::json::exception& error) {
        fmt::print(stderr, "gz-timeline: an event has another format: {}\n", error.what());
        return 2;
    } catch (const timeline::BadInput& error) {
        fmt::print(stderr, "gz-timeline: {}\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gz-timeline: {}\n", error.what());
        return 1;
    }
}
