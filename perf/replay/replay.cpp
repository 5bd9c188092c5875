#include "replay/replay.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <stdexcept>

#include "bounds.hpp"
#include "pattern.hpp"
#include "replay/step_series.hpp"
#include "statistics.hpp"
#include "watch.hpp"

namespace guozhuang::perf {
namespace {

double process_cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Page faults of the process so far.
double page_faults() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_minflt + usage.ru_majflt);
}

/// Measurements of one series on this rank.
struct Lane {
    std::unique_ptr<StepSeries> series;
    std::string_view baseline = {};  ///< whose way it is; empty: the library's
    std::vector<double> seconds = {};
    std::vector<double> exposed = {};
    double cpu_seconds = 0, faults = 0;
    Sent sent = {};
};

void step_once(const MpiJob& job, Lane& lane) {
    job.align();
    const auto before = lane.series->sent().value_or(Sent{});
    const double cpu = process_cpu_seconds(), faults = page_faults();
    const auto start = Clock::now();
    lane.exposed.push_back(lane.series->step());
    lane.seconds.push_back(seconds_since(start));
    lane.cpu_seconds += process_cpu_seconds() - cpu;
    lane.faults += page_faults() - faults;
    const auto after = lane.series->sent().value_or(Sent{});
    lane.sent.bytes += after.bytes - before.bytes;
    lane.sent.messages += after.messages - before.messages;
}

/// The lanes take turns, step by step; what was measured before is forgotten.
void measure(const MpiJob& job, std::vector<Lane>& lanes, std::size_t steps) {
    for (auto& lane : lanes) lane = {.series = std::move(lane.series), .baseline = lane.baseline};
    for (std::size_t step = 0; step < steps; ++step)
        for (auto& lane : lanes) step_once(job, lane);
}

/// Runs one untimed step and checks every element. Each gradient starts at another element of the
/// pattern, so none is taken for another.
void prove(const MpiJob& job, StepSeries& series, const Gradients& gradients, std::size_t first) {
    const Pattern pattern(DType::f32, series.op(), job.size());
    const auto& parameters = gradients.parameters();
    const auto* const device = gradients.device();
    for (std::size_t i = 0; i < parameters.size(); ++i)
        fill_from_host(device, parameters[i].gradient.memory(), [&](std::span<std::byte> memory) {
            pattern.fill(memory, job.rank(), first + i);
        });
    series.step();
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i)
        wrong += look_from_host(device, parameters[i].gradient.memory(),
                                [&](std::span<const std::byte> memory) {
                                    return pattern.wrong_reduced(memory, first + i);
                                });
    wrong = job.sum(wrong);
    if (wrong > 0)
        throw std::runtime_error(fmt::format("{}: {} wrong elements", series.name(), wrong));
}

/// The figures of a series over all ranks: times of the slowest rank; traffic, CPU and page faults
/// of the rank that has most.
struct Summary {
    std::string name;
    std::string_view baseline;
    double p50_ms, min_ms, max_ms, exposed_ms;
    std::optional<Sent> sent;
    double cpu_s, faults;
    std::optional<DeviceAllreduce> bounded = {};
    std::optional<Disturbance> disturbance = {};
};

Summary row_of(const MpiJob& job, const Lane& lane) {
    const auto seconds = job.max(lane.seconds);
    const auto steps = static_cast<double>(seconds.size());
    Summary row{std::string(lane.series->name()),
                lane.baseline,
                quantile(seconds, 0.5) * 1e3,
                std::ranges::min(seconds) * 1e3,
                std::ranges::max(seconds) * 1e3,
                quantile(job.max(lane.exposed), 0.5) * 1e3,
                std::nullopt,
                job.max(lane.cpu_seconds) / steps,
                job.max(lane.faults) / steps};
    if (!lane.series->sent()) return row;
    const auto bytes = job.max(static_cast<double>(lane.sent.bytes)),
               messages = job.max(static_cast<double>(lane.sent.messages));
    row.sent = Sent{static_cast<std::uint64_t>(bytes / steps),
                    static_cast<std::uint64_t>(messages / steps)};
    return row;
}

Json line_of(const MpiJob& job, const ReplayOptions& options, const Summary& row) {
    Json line{{"kind", "replay"},
              {"set", std::filesystem::path(options.set).stem().string()},
              {"series", row.name},
              {"ranks", job.size()},
              {"memory", name_of(options.memory)},
              {"step_p50_ms", row.p50_ms},
              {"step_min_ms", row.min_ms},
              {"step_max_ms", row.max_ms},
              {"exposed_ms", row.exposed_ms},
              {"bytes_sent", row.sent ? Json(row.sent->bytes) : Json(nullptr)},
              {"messages_sent", row.sent ? Json(row.sent->messages) : Json(nullptr)},
              {"cpu_s_per_step", row.cpu_s},
              {"page_faults", row.faults}};
    add_to(line, row.disturbance);
    if (options.device) line["device"] = name_of(*options.device);
    if (row.bounded) {
        line["path"] = row.bounded->path;
        line["paths"] = json_of_bounds(*row.bounded);
    }
    return line;
}

void print(const Summary& row) {
    const auto bytes = row.sent ? fmt::to_string(row.sent->bytes) : "-",
               messages = row.sent ? fmt::to_string(row.sent->messages) : "-";
    fmt::print("{:<16}{:>12.3f}{:>12.3f}{:>12.3f}{:>12.3f}{:>14}{:>10}{:>12.4f}{:>9.1f}\n",
               row.name, row.p50_ms, row.min_ms, row.max_ms, row.exposed_ms, bytes, messages,
               row.cpu_s, row.faults);
}

std::size_t bytes_of(const Gradients& gradients) {
    std::size_t bytes = 0;
    for (const auto& parameter : gradients.parameters()) bytes += parameter.gradient.bytes();
    return bytes;
}

void print_header(const Gradients& gradients, const ReplayOptions& options) {
    fmt::print(
        "# {}: {} gradients, {:.1f} MB; no compute: backward is the hook's calls alone, so exposed "
        "is nearly the whole step\n",
        options.set, gradients.parameters().size(), static_cast<double>(bytes_of(gradients)) / 1e6);
    fmt::print("{:<16}{:>12}{:>12}{:>12}{:>12}{:>14}{:>10}{:>12}{:>9}\n", "series", "step p50 ms",
               "min", "max", "exposed", "bytes sent", "messages", "cpu s/step", "faults");
}

void report(const MpiJob& job, const ReplayOptions& options, const std::vector<Summary>& rows,
            JsonLines& lines) {
    for (const auto& row : rows) {
        if (job.first()) print(row);
        lines.write(line_of(job, options, row));
    }
    if (const auto& bounded = rows.front().bounded; bounded && job.first()) {
        const auto bound = bound_taken(*bounded);
        const double bound_ms = bound ? bound->seconds * 1e3 : 0;
        bound ? fmt::print("# path: {}; bound: {:.3f} ms, {:.2f} of ours\n", bounded->path,
                           bound_ms, bound_ms / rows.front().p50_ms)
              : fmt::print("# path: {}\n", bounded->path);
    }
}

/// The fastest way of a baseline, again under its bare name.
void report_fastest(const MpiJob& job, const ReplayOptions& options,
                    const std::vector<Summary>& rows, std::string_view baseline, JsonLines& lines) {
    std::vector<Summary> ways;
    std::ranges::copy_if(rows, std::back_inserter(ways),
                         [&](const Summary& row) { return row.baseline == baseline; });
    auto fastest = *std::ranges::min_element(ways, {}, &Summary::p50_ms);
    if (job.first())
        fmt::print("# peer: {}, {:.2f} of ours\n", fastest.name,
                   fastest.p50_ms / rows.front().p50_ms);
    fastest.name = baseline;
    lines.write(line_of(job, options, fastest));
}

/// All gradients as one allreduce. On the host they are reduced as here, step by step.
DeviceAllreduce allreduce_of(const MpiJob& job, const ReplayOptions& options,
                             const TensorDevice& device, JsonLines& lines) {
    const Gradients on_host(read_gradient_set(options.set));
    const auto step = make_guozhuang_step(on_host);
    return {.bytes = bytes_of(on_host),
            .ranks = job.size(),
            .sharers = device.sharers(),
            .wire_seconds = wire_seconds(job, [&] { step->step(); }),
            .bandwidths = measure_bandwidths(job, device, lines),
            .path = device.path()};
}

}  // namespace

void replay(const MpiJob& job, const ReplayOptions& options, JsonLines& lines) {
    const auto device = open_device(job, options.device);
    std::optional<Gradients> prepared;
    job.all_or_none(
        [&] { prepared.emplace(read_gradient_set(options.set), options.memory, device.get()); });
    const Gradients& gradients = *prepared;
    const auto baselines = make_baselines(job, options.baselines, device.get(), lines);
    std::vector<Lane> lanes;
    lanes.push_back({.series = make_guozhuang_step(gradients)});
    if (options.calls) lanes.push_back({.series = make_guozhuang_calls(gradients)});
    for (const auto& baseline : baselines)
        for (auto& series : make_baseline_steps(*baseline, gradients))
            lanes.push_back({.series = std::move(series), .baseline = baseline->name()});
    for (std::size_t warm_up = 0; warm_up < 2; ++warm_up)
        for (auto& lane : lanes) prove(job, *lane.series, gradients, warm_up);
    const auto clear = [](std::span<std::byte> all) { std::ranges::fill(all, std::byte{0}); };
    fill_from_host(device.get(), gradients.flat(), clear);  // otherwise sums of sums would overflow
    const auto disturbance =
        measure_watched(job, options.watch, [&] { measure(job, lanes, options.steps); });
    std::vector<Summary> rows;
    for (const auto& lane : lanes) {
        rows.push_back(row_of(job, lane));
        rows.back().disturbance = disturbance;
    }
    if (device) rows.front().bounded = allreduce_of(job, options, *device, lines);
    if (job.first()) print_header(gradients, options);
    report(job, options, rows, lines);
    print(job, disturbance);
    for (const auto& baseline : baselines)
        report_fastest(job, options, rows, baseline->name(), lines);
}

}  // namespace guozhuang::perf
