#include "trace/trace_text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <guozhuang/version.hpp>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace guozhuang::trace {
namespace {

constexpr std::size_t most_name_bytes = 500;
constexpr int first_request_row = 10'001;  // rows below are those of slices

/// The text as a JSON string; bytes that are not UTF-8 are replaced. A long text is cut.
std::string json_string(std::string_view text) {
    if (text.size() > most_name_bytes)
        return json_string(std::string(text.substr(0, most_name_bytes - 3)) + "...");
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Microseconds, as the format counts.
std::string time(std::int64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

std::string arguments(const TimelineFacts& facts) {
    std::string text;
    const auto separator = [&] { return text.empty() ? "" : ","; };
    if (!facts.operation.empty())
        text += fmt::format(R"({}"operation":"{}")", separator(), facts.operation);
    if (!facts.algorithm.empty())
        text += fmt::format(R"({}"algorithm":"{}")", separator(), facts.algorithm);
    if (facts.bytes != 0) text += fmt::format(R"({}"bytes":{})", separator(), facts.bytes);
    if (facts.tensors != 0) text += fmt::format(R"({}"tensors":{})", separator(), facts.tensors);
    if (facts.set) text += fmt::format(R"({}"set":{})", separator(), json_string(*facts.set));
    return text.empty() ? text : fmt::format(R"(,"args":{{{}}})", text);
}

std::string line_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

template <class Clock>
std::int64_t microseconds() {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
        .count();
}

}  // namespace

std::string TraceText::head() const {
    const auto host = line_of("/proc/sys/kernel/hostname");
    const auto process = getpid();
    const nlohmann::ordered_json self = {
        {"version", version()},
        {"rank", owner_.rank},
        {"ranks", owner_.ranks},
        {"host", host},
        {"process", process},
        {"boot", line_of("/proc/sys/kernel/random/boot_id")},
        {"monotonic_us", microseconds<std::chrono::steady_clock>()},
        {"realtime_us", microseconds<std::chrono::system_clock>()}};
    const auto element = [this](std::string_view name, const std::string& args) {
        return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":0,"args":{}}})", name,
                           owner_.rank, args);
    };
    return element("guozhuang",
                   self.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) +
           ",\n" + element("process_name", fmt::format(R"({{"name":"rank {}"}})", owner_.rank)) +
           ",\n" +
           element("process_labels",
                   fmt::format(R"({{"labels":{}}})",
                               json_string(fmt::format("{}, pid {}", host, process)))) +
           ",\n" +
           element("process_sort_index", fmt::format(R"({{"sort_index":{}}})", owner_.rank));
}

std::string TraceText::of(std::span<const TimelineRecord> records, std::uint64_t lost) {
    for (const auto& record : records) {
        switch (record.kind) {
            case TimelineRecord::Kind::begin: begin(record); break;
            case TimelineRecord::Kind::enter:
                if (const auto found = requests_.find(record.request); found != requests_.end()) {
                    close(found->second.number, record.at_ns, false);
                    open(record.phase, found->second.number, record.at_ns, {});
                }
                break;
            case TimelineRecord::Kind::end: end(record); break;
            case TimelineRecord::Kind::slice: slice(record); break;
        }
    }
    if (lost > 0) mark_loss(lost, records.empty() ? 0 : records.back().at_ns);
    return std::exchange(text_, {});
}

void TraceText::begin(const TimelineRecord& record) {
    const auto& set = record.facts.set;
    auto& free = free_[set ? *set : ""];
    if (free.empty()) {
        const int row = first_request_row + request_rows_++;
        free.insert(row);
        name_row(row, set ? "requests of " + *set : "requests");
    }
    const int row = free.extract(free.begin()).value();
    requests_.emplace(record.request, Row{.number = row, .free = &free});
    open(record.name, row, record.at_ns, record.facts);
    open(record.phase, row, record.at_ns, {});
}

/// Ignores a request whose beginning was lost or came before the recording.
void TraceText::end(const TimelineRecord& record) {
    const auto found = requests_.find(record.request);
    if (found == requests_.end()) return;
    const auto& row = found->second;
    close(row.number, record.at_ns, false);
    close(row.number, record.at_ns, record.failed);
    row.free->insert(row.number);
    requests_.erase(found);
}

void TraceText::open(std::string_view name, int row, std::int64_t at_ns,
                     const TimelineFacts& facts) {
    fmt::format_to(std::back_inserter(next()),
                   R"({{"name":{},"ph":"B","ts":{},"pid":{},"tid":{}{}}})", json_string(name),
                   time(at_ns), owner_.rank, row, arguments(facts));
}

void TraceText::close(int row, std::int64_t at_ns, bool failed) {
    fmt::format_to(std::back_inserter(next()), R"({{"ph":"E","ts":{},"pid":{},"tid":{}{}}})",
                   time(at_ns), owner_.rank, row, failed ? R"(,"args":{"failed":true})" : "");
}

/// Ends all requests, since the records of their ends may be among the lost ones.
void TraceText::mark_loss(std::uint64_t lost, std::int64_t at_ns) {
    for (const auto& [request, row] : requests_) {
        close(row.number, at_ns, false);
        close(row.number, at_ns, false);
        row.free->insert(row.number);
    }
    requests_.clear();
    fmt::format_to(std::back_inserter(next()),
                   R"({{"name":"{} records lost","ph":"i","s":"p","ts":{},"pid":{},"tid":0}})",
                   lost, time(at_ns), owner_.rank);
}

void TraceText::slice(const TimelineRecord& record) {
    const int row = record.name.empty() ? row_of(record.thread) : row_of(record.name);
    fmt::format_to(std::back_inserter(next()),
                   R"({{"name":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":{}{}}})", record.phase,
                   time(record.from_ns), time(record.at_ns - record.from_ns), owner_.rank, row,
                   arguments(record.facts));
}

int TraceText::row_of(int thread) {
    const auto [known, added] = threads_.try_emplace(thread, next_row());
    if (added) {
        const auto name =
            thread == getpid() ? "main" : line_of(fmt::format("/proc/self/task/{}/comm", thread));
        name_row(known->second, name.empty() ? fmt::format("thread {}", thread) : name);
    }
    return known->second;
}

int TraceText::row_of(const std::string& name) {
    const auto [known, added] = named_.try_emplace(name, next_row());
    if (added) name_row(known->second, name);
    return known->second;
}

void TraceText::name_row(int row, std::string_view name) {
    fmt::format_to(std::back_inserter(next()),
                   R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})",
                   owner_.rank, row, json_string(name));
    fmt::format_to(
        std::back_inserter(next()),
        R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
        owner_.rank, row, row);
}

std::string& TraceText::next() {
    if (!text_.empty()) text_ += ",\n";
    return text_;
}

}  // namespace guozhuang::trace
