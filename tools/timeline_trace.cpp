#include "timeline_trace.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <map>
#include <set>

namespace timeline {
namespace {

constexpr int most_ranks = 1 << 20;
// The latest time that is taken: differences of such times can be added up.
constexpr std::int64_t last_us = std::int64_t{1} << 60;

/// The element of a line, without the comma behind it; null for what is around the elements.
/// Discarded if it is none of these.
Json element_of(std::string line) {
    if (line.empty() || line == "[" || line == "]") return nullptr;
    if (line.ends_with(',')) line.pop_back();
    auto element = Json::parse(line, nullptr, false);
    return element.is_object() ? element : Json(Json::value_t::discarded);
}

/// The number, which is written as a whole one, and from 0 to the highest.
std::int64_t whole(const Json& value, std::int64_t highest) {
    const auto number = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    if (number < 0 || number > highest) throw BadInput("");
    return number;
}

void read_head(Trace& trace) try {
    const auto& self = trace.events.at(0);
    if (self.at("name") != "guozhuang") throw BadInput("");
    const auto& args = self.at("args");
    trace.ranks = static_cast<int>(whole(args.at("ranks"), most_ranks));
    trace.rank = static_cast<int>(whole(args.at("rank"), trace.ranks - 1));
    trace.host = args.at("host");
    trace.boot = args.at("boot");
    trace.monotonic_us = whole(args.at("monotonic_us"), last_us);
    trace.realtime_us = whole(args.at("realtime_us"), last_us);
} catch (const std::exception&) {
    throw BadInput(fmt::format("{} is not a timeline that Guozhuang has recorded", trace.path));
}

}  // namespace

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) return {path};
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
        const auto name = entry.path().filename().string();
        if (name.starts_with("rank") && name.ends_with(".json")) files.push_back(entry.path());
    }
    if (error) throw BadInput(fmt::format("{} cannot be read: {}", path.string(), error.message()));
    if (files.empty())
        throw BadInput(
            fmt::format("{} holds no timeline: there is no rank*.json in it", path.string()));
    return files;
}

Trace read(const std::filesystem::path& path) {
    Trace trace{.path = path.string(), .host = {}, .boot = {}, .events = {}};
    std::ifstream file(path);
    if (!file) throw BadInput(fmt::format("{} cannot be read", trace.path));
    bool closed = false;
    for (std::string line; std::getline(file, line);) {
        if (trace.cut || closed)
            throw BadInput(fmt::format("{} is damaged in its middle", trace.path));
        auto element = element_of(line);
        closed = line == "]";
        trace.cut = element.is_discarded();
        if (element.is_object()) trace.events.push_back(std::move(element));
    }
    trace.cut = !closed;
    read_head(trace);
    return trace;
}

void align(std::vector<Trace>& traces) {
    std::ranges::sort(traces, {}, &Trace::rank);
    const auto twins = std::ranges::adjacent_find(traces, {}, &Trace::rank);
    if (twins != traces.end())
        throw BadInput(fmt::format("{} and {} are both of rank {}: give those of one recording",
                                   twins->path, std::next(twins)->path, twins->rank));
    // By host: added to its clock, this gives the clock of the first host.
    std::map<std::string, std::int64_t> hosts;
    const auto first = traces.front().realtime_us - traces.front().monotonic_us;
    auto start = std::numeric_limits<std::int64_t>::max();
    for (const auto& trace : traces) {
        const auto [host, added] =
            hosts.try_emplace(trace.boot, trace.realtime_us - trace.monotonic_us - first);
        start = std::min(start, trace.monotonic_us + host->second);
    }
    for (auto& trace : traces) {
        const auto shift = static_cast<double>(hosts.at(trace.boot) - start);
        for (auto& event : trace.events)
            if (const auto time = event.find("ts"); time != event.end())
                *time = time->get<double>() + shift;
    }
}

std::vector<std::string> remarks(const std::vector<Trace>& traces) {
    std::vector<std::string> lines;
    std::set<int> missing;
    std::set<std::string> clocks;
    for (int rank = 0; rank < traces.front().ranks; ++rank) missing.insert(rank);
    for (const auto& trace : traces) {
        missing.erase(trace.rank);
        clocks.insert(trace.boot);
        if (trace.cut)
            lines.push_back(
                fmt::format("{} ends early: rank {} was killed, or ended because another rank was",
                            trace.path, trace.rank));
    }
    for (const auto rank : missing)
        lines.push_back(fmt::format("there is no timeline of rank {}", rank));
    if (clocks.size() > 1)
        lines.push_back(fmt::format(
            "{} hosts: their times are as far apart as their wall clocks were, often a millisecond",
            clocks.size()));
    return lines;
}

}  // namespace timeline
