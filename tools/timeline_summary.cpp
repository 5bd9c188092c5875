#include "timeline_summary.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <numeric>
#include <utility>

namespace timeline {
namespace {

/// Kinds in the order in which a request meets them; then those of threads.
constexpr const char* kinds[] = {"negotiate", "queue", "message", "bundle",
                                 "stream",    "fused", "wait"};

struct Request {
    double begun_us = 0;
    int rank = 0;
    int ranks = 0;  ///< that have it
};

/// The findings of one pass over the traces.
struct Findings {
    std::map<std::pair<std::string, int>, std::vector<double>> durations;  ///< by kind and rank
    std::map<std::pair<std::string, std::size_t>, Request>
        last_to_submit;  ///< by name with its set, and how often it had been there before
};

/// Sets have names of their own.
std::string name_in_set(const Json& event) {
    const auto name = event.value("name", "");
    const auto args = event.find("args");
    return args == event.end() ? name : args->value("set", "") + '\0' + name;
}

void look_at(const Trace& trace, Findings& findings) {
    // The open slices of each row of requests: the request, and its phase.
    std::map<double, std::vector<std::pair<std::string, double>>> open;
    // How often each name has been there.
    std::map<std::string, std::size_t> times;
    for (const auto& event : trace.events) {
        const auto kind = event.value("ph", "");
        if (kind != "B" && kind != "E" && kind != "X") continue;
        const double at = event.value("ts", 0.0);
        auto& row = open[event.value("tid", 0.0)];
        if (kind == "X") {
            findings.durations[{event.value("name", ""), trace.rank}].push_back(
                event.value("dur", 0.0));
        } else if (kind == "B") {
            row.emplace_back(event.value("name", ""), at);
            if (row.size() > 1) continue;
            const auto name = name_in_set(event);
            auto& request = findings.last_to_submit[{name, times[name]++}];
            ++request.ranks;
            if (request.ranks == 1 || at > request.begun_us)
                request.begun_us = at, request.rank = trace.rank;
        } else if (!row.empty()) {
            const auto& [name, begun] = row.back();
            // The phase `bundle` is the same time as the slice of the thread that runs it.
            if (row.size() == 2 && name != "bundle")
                findings.durations[{name, trace.rank}].push_back(at - begun);
            row.pop_back();
        }
    }
}

std::string table_of(Findings& findings) {
    auto text = fmt::format("{:<10} {:>5} {:>9} {:>11} {:>11} {:>11}\n", "slice", "rank", "count",
                            "total ms", "p50 us", "max us");
    for (const auto* const kind : kinds) {
        for (auto& [key, values] : findings.durations) {
            if (key.first != kind) continue;
            std::ranges::sort(values);
            text +=
                fmt::format("{:<10} {:>5} {:>9} {:>11.3f} {:>11.1f} {:>11.1f}\n", kind, key.second,
                            values.size(), std::accumulate(values.begin(), values.end(), 0.0) / 1e3,
                            values[values.size() / 2], values.back());
        }
    }
    return text;
}

}  // namespace

std::string summary(const std::vector<Trace>& traces) {
    Findings findings;
    std::map<int, std::size_t> last;
    for (const auto& trace : traces) look_at(trace, findings), last[trace.rank] = 0;
    std::size_t common = 0;
    for (const auto& [key, request] : findings.last_to_submit) {
        if (request.ranks != static_cast<int>(traces.size())) continue;
        ++common;
        ++last[request.rank];
    }
    auto text = table_of(findings);
    if (common > 0 && traces.size() > 1)
        for (const auto& [rank, count] : last)
            text += fmt::format("rank {} was the last to submit {} of {} requests\n", rank, count,
                                common);
    return text;
}

}  // namespace timeline
