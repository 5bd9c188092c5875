#include "sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "beside/beside.hpp"
#include "bounds.hpp"
#include "statistics.hpp"
#include "watch.hpp"

namespace guozhuang::perf {
namespace {

struct Figures {
    double p50_us = 0;
    double min_us = 0;
    double p99_us = 0;
    double mean_us = 0;
    double algbw = 0;  // GB/s
    double busbw = 0;
    std::optional<std::uint64_t> errors;  // empty: not checked
    std::optional<DeviceAllreduce> bounded = {};
};

/// From one rank of a host to the next, through a pipe.
struct Hop {
    double p50_us = 0;
    double mean_us = 0;
};

/// How often each series of a size runs: in rounds of a few iterations, in turn.
struct Schedule {
    std::size_t rounds;
    std::size_t iterations;  // of a round
    std::size_t warm_up;     // untimed, first in a round: recovers from the change of series

    static constexpr std::size_t fewest = 4, most = 1000, rounds_at_most = 10;
    static constexpr std::size_t most_watched = 100'000;  // it takes time to see a disturbance

    static Schedule of(std::size_t iterations) {
        const std::size_t rounds = std::min(iterations, rounds_at_most);
        const std::size_t each = (iterations + rounds - 1) / rounds;
        return {rounds, each, each >= 4 ? 1u : 0u};
    }
};

/// Measures one size.
class Row {
public:
    Row(const MpiJob& job, const Case& test, std::span<std::byte> input, const Pattern* pattern,
        const TensorDevice* device)
        : job_(job), test_(test), input_(input), pattern_(pattern), device_(device) {}

    /// Operations then follow each other without barriers, and each round has hops through the
    /// pipes.
    void take_hops(PipeRing& pipes) { pipes_ = &pipes; }

    void add(std::unique_ptr<Series> series) { lanes_.push_back({std::move(series), {}, 0}); }

    void measure(const SweepOptions& options) {
        for (auto& lane : lanes_) lane.seconds.clear();
        hop_seconds_.clear();
        back_to_back_ = options.back_to_back;
        for (auto& lane : lanes_) once(lane);  // not timed
        const Schedule schedule =
            Schedule::of(options.iterations ? *options.iterations : affordable(options));
        for (std::size_t round = 0; round < schedule.rounds; ++round) {
            for (auto& lane : lanes_) {
                if (!is_aligned()) job_.align();
                for (std::size_t i = 0; i < schedule.warm_up; ++i) once(lane);
                const auto start = Clock::now();
                for (std::size_t i = 0; i < schedule.iterations; ++i) {
                    const double seconds = once(lane);
                    if (!back_to_back_) lane.seconds.push_back(seconds);
                }
                if (back_to_back_)
                    lane.seconds.push_back(seconds_since(start) /
                                           static_cast<double>(schedule.iterations));
            }
            if (pipes_ != nullptr) measure_hops(schedule.iterations);
        }
    }

    /// The figures of each series, in the order in which they were added; the same on all ranks.
    std::vector<Figures> figures() const {
        std::vector<Figures> all;
        for (const auto& lane : lanes_) {
            const auto seconds = job_.max(lane.seconds);
            const double p50 = quantile(seconds, 0.5);
            const double algbw = static_cast<double>(test_.bytes()) / p50 / 1e9;
            const double busbw = algbw * bus_factor(test_.collective, test_.ranks);
            all.push_back({p50 * 1e6, std::ranges::min(seconds) * 1e6,
                           quantile(seconds, 0.99) * 1e6, mean(seconds) * 1e6, algbw, busbw,
                           errors_of(lane)});
        }
        return all;
    }

    std::optional<Hop> hop() const {
        if (pipes_ == nullptr) return std::nullopt;
        const auto seconds = job_.max(hop_seconds_);
        return Hop{quantile(seconds, 0.5) * 1e6, mean(seconds) * 1e6};
    }

    std::string_view series(std::size_t i) const { return lanes_[i].series->name(); }

private:
    struct Lane {
        std::unique_ptr<Series> series;
        std::vector<double> seconds;
        std::uint64_t errors;
    };

    /// Whether a barrier precedes each operation.
    bool is_aligned() const noexcept { return pipes_ == nullptr && !back_to_back_; }

    /// How many iterations of each series fit into the budget, found by trial.
    std::size_t affordable(const SweepOptions& options) {
        const auto start = Clock::now();
        for (auto& lane : lanes_) once(lane);
        const double fit = std::floor(options.seconds / std::max(seconds_since(start), 1e-9));
        const double most = options.watch ? Schedule::most_watched : Schedule::most;
        return job_.of_first(
            static_cast<std::size_t>(std::clamp(fit, double{Schedule::fewest}, most)));
    }

    void measure_hops(std::size_t rounds) {
        job_.align();
        for (std::size_t i = 0; i < rounds; ++i) {
            const auto start = Clock::now();
            pipes_->pass_token();
            hop_seconds_.push_back(seconds_since(start) / pipes_->ranks());
        }
    }

    std::optional<std::uint64_t> errors_of(const Lane& lane) const {
        if (pattern_ == nullptr) return std::nullopt;
        return job_.sum(lane.errors);
    }

    double once(Lane& lane) {
        const std::size_t first = ++operations_;
        if (pattern_ != nullptr)
            fill_from_host(device_, input_, [&](std::span<std::byte> input) {
                fill_input(test_, *pattern_, input, first);
            });
        lane.series->prepare();
        if (is_aligned()) job_.align();
        const auto start = Clock::now();
        lane.series->run();
        const double seconds = seconds_since(start);
        if (pattern_ != nullptr)
            lane.errors += look_from_host(
                device_, lane.series->result(), [&](std::span<const std::byte> result) {
                    return wrong_elements(test_, *pattern_, result, first);
                });
        lane.series->forget();
        return seconds;
    }

    const MpiJob& job_;
    Case test_;
    std::span<std::byte> input_;
    const Pattern* pattern_;
    const TensorDevice* device_;
    PipeRing* pipes_ = nullptr;
    bool back_to_back_ = false;
    std::vector<Lane> lanes_;
    std::vector<double> hop_seconds_;
    std::size_t operations_ = 0;
};

std::string_view type_name(const SweepOptions& options) {
    return options.collective == Collective::barrier ? "none" : name_of(options.dtype);
}

std::string_view op_name(const SweepOptions& options) {
    return reduces(options.collective) ? name_of(options.op) : "none";
}

/// Whether the library's figures are shown beside their bounds.
bool is_bounded(const SweepOptions& options) {
    return options.device && options.collective == Collective::allreduce;
}

void print_header(const SweepOptions& options, const Baselines& baselines) {
    constexpr std::string_view figures = "{:>12}{:>12}{:>9}{:>9}{:>8}";
    fmt::print("# {}; times in us, bandwidths in GB/s\n", name_of(options.collective));
    if (options.beside)
        fmt::print("# beside {} busy threads on each host; hop: a token through a pipe\n",
                   *options.beside);
    fmt::print("{:>11}{:>11}{:>6}{:>9}", "bytes", "count", "type", "op");
    fmt::print(figures, "p50", "p99", "algbw", "busbw", "errors");
    for (const auto& baseline : baselines) {
        fmt::print(figures, fmt::format("{} p50", baseline->name()), "p99", "algbw", "busbw",
                   "errors");
        fmt::print("{:>12}", fmt::format("{}/ours", baseline->name()));
    }
    if (is_bounded(options)) fmt::print("{:>9}{:>12}{:>10}", "path", "bound", "/p50");
    if (options.beside) {
        fmt::print("{:>12}", "mean");
        for (const auto& baseline : baselines)
            fmt::print("{:>12}", fmt::format("{} mean", baseline->name()));
        fmt::print("{:>12}{:>12}", "hop p50", "hop mean");
    }
    fmt::print("\n");
}

void print_row(const SweepOptions& options, const Case& test, std::span<const Figures> all,
               const std::optional<Hop>& hop) {
    fmt::print("{:>11}{:>11}{:>6}{:>9}", test.bytes(), test.count, type_name(options),
               op_name(options));
    for (const auto& f : all) {
        const auto errors = f.errors ? fmt::to_string(*f.errors) : "-";
        fmt::print("{:>12.2f}{:>12.2f}{:>9.3f}{:>9.3f}{:>8}", f.p50_us, f.p99_us, f.algbw, f.busbw,
                   errors);
        if (&f != &all[0]) fmt::print("{:>12.2f}", f.p50_us / all[0].p50_us);
    }
    if (const auto& bounded = all[0].bounded) {
        const auto bound = bound_taken(*bounded);
        const double bound_us = bound ? bound->seconds * 1e6 : 0;
        fmt::print("{:>9}", bounded->path);
        bound ? fmt::print("{:>12.2f}{:>10.2f}", bound_us, bound_us / all[0].p50_us)
              : fmt::print("{:>12}{:>10}", "-", "-");
    }
    if (hop) {
        for (const auto& f : all) fmt::print("{:>12.2f}", f.mean_us);
        fmt::print("{:>12.2f}{:>12.2f}", hop->p50_us, hop->mean_us);
    }
    fmt::print("\n");
    std::fflush(stdout);
}

Json line_of(const SweepOptions& options, const Case& test, std::string_view series,
             const Figures& figures) {
    Json line{{"kind", "sweep"},
              {"collective", name_of(options.collective)},
              {"series", series},
              {"ranks", test.ranks},
              {"bytes", test.bytes()},
              {"count", test.count},
              {"dtype", type_name(options)},
              {"op", op_name(options)},
              {"algorithm", series == "guozhuang" ? options.algorithm : series},
              {"memory", name_of(options.memory)},
              {"p50_us", figures.p50_us},
              {"min_us", figures.min_us},
              {"p99_us", figures.p99_us},
              {"algbw_GBps", figures.algbw},
              {"busbw_GBps", figures.busbw},
              {"errors", figures.errors ? Json(*figures.errors) : Json(nullptr)}};
    if (options.back_to_back) line["back_to_back"] = true;
    if (options.beside) {
        line["beside"] = *options.beside;
        line["mean_us"] = figures.mean_us;
    }
    if (options.device) line["device"] = name_of(*options.device);
    if (figures.bounded) {
        line["path"] = figures.bounded->path;
        line["paths"] = json_of_bounds(*figures.bounded);
    }
    return line;
}

Json line_of_hop(int busy_threads, const Case& test, const Hop& hop) {
    return {{"kind", "hop"},          {"series", "pipes"},    {"ranks", test.ranks},
            {"beside", busy_threads}, {"p50_us", hop.p50_us}, {"mean_us", hop.mean_us}};
}

/// The counts to measure, without repetition; for a barrier one empty case.
std::vector<std::size_t> counts_of(const SweepOptions& options) {
    if (options.collective == Collective::barrier) return {0};
    std::vector<std::size_t> counts;
    for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes;) {
        const std::size_t count = bytes / size_of(options.dtype);
        if (count > 0 && (counts.empty() || counts.back() != count)) counts.push_back(count);
        if (bytes > options.max_bytes / options.factor) break;  // the next could overflow
        bytes *= options.factor;
    }
    if (counts.empty())
        throw std::invalid_argument(
            "no size of at least one element from --min-bytes to --max-bytes");
    return counts;
}

/// The largest output of the sweep's cases, for series that need one beside the input.
std::size_t output_bytes(const SweepOptions& options, int ranks) {
    const bool needed = !options.baselines.empty() || options.device;
    return is_in_place(options.collective) || !needed
               ? 0
               : options.max_bytes + static_cast<std::size_t>(ranks) * size_of(options.dtype);
}

Case case_of(const MpiJob& job, const SweepOptions& options, std::size_t count) {
    return {options.collective, options.dtype, options.op, count, job.rank(), job.size()};
}

/// Made before anything is measured, so that what is missing shows first.
struct Setup {
    Setup(const MpiJob& job, const SweepOptions& options, const Baselines& baselines,
          const TensorDevice* device)
        : counts(counts_of(options)),
          input(counts.back() * size_of(options.dtype), options.memory, device),
          output(output_bytes(options, job.size()), MemoryKind::ordinary, device) {
        const auto op = reduces(options.collective) ? std::optional(options.op) : std::nullopt;
        const bool orders = options.op == ReduceOp::min || options.op == ReduceOp::max;
        if (op && options.dtype == DType::boolean && !orders)
            throw std::invalid_argument("op " + std::string(name_of(*op)) +
                                        " is not defined on bool: use min or max");
        if (options.check) pattern.emplace(options.dtype, op, job.size());
        for (const auto& baseline : baselines)
            baseline->series(case_of(job, options, counts.back()), input.all(), output.all());
    }

    std::vector<std::size_t> counts;
    Memory input, output;
    std::optional<Pattern> pattern;
};

DeviceAllreduce allreduce_of(const MpiJob& job, const Case& test, const TensorDevice& device,
                             const TensorDevice::Bandwidths& bandwidths) {
    const Memory input(test.bytes());
    const auto on_host = make_guozhuang_series(test, input.all(), {}, nullptr);
    return {.bytes = test.bytes(),
            .ranks = test.ranks,
            .sharers = device.sharers(),
            .wire_seconds = wire_seconds(job, [&] { on_host->run(); }),
            .bandwidths = bandwidths,
            .path = device.path()};
}

}  // namespace

std::uint64_t sweep(const MpiJob& job, const SweepOptions& options, JsonLines& lines) {
    const auto device = open_device(job, options.device);
    const auto baselines = make_baselines(job, options.baselines, device.get(), lines);
    std::optional<Setup> prepared;
    job.all_or_none([&] { prepared.emplace(job, options, baselines, device.get()); });
    const auto& [counts, input, output, pattern] = *prepared;
    const auto bandwidths =
        device ? measure_bandwidths(job, *device, lines) : TensorDevice::Bandwidths();
    if (job.first()) print_header(options, baselines);
    std::optional<PipeRing> pipes;
    if (options.beside) pipes.emplace();
    const BusyThreads busy(options.beside.value_or(0));
    std::uint64_t ours = 0, of_baselines = 0;
    for (const auto count : counts) {
        const Case test = case_of(job, options, count);
        Row row(job, test, input.all(), pattern ? &*pattern : nullptr, device.get());
        row.add(make_guozhuang_series(test, input.all(), output.all(), device.get()));
        for (const auto& baseline : baselines)
            row.add(baseline->series(test, input.all(), output.all()));
        if (pipes) row.take_hops(*pipes);
        const auto disturbance = measure_watched(job, options.watch, [&] { row.measure(options); });
        auto figures = row.figures();
        const auto hop = row.hop();
        if (is_bounded(options)) figures[0].bounded = allreduce_of(job, test, *device, bandwidths);
        if (job.first()) print_row(options, test, figures, hop);
        print(job, disturbance);
        for (std::size_t i = 0; i < figures.size(); ++i) {
            auto line = line_of(options, test, row.series(i), figures[i]);
            add_to(line, disturbance);
            lines.write(line);
            (row.series(i) == "guozhuang" ? ours : of_baselines) += figures[i].errors.value_or(0);
        }
        if (hop) lines.write(line_of_hop(*options.beside, test, *hop));
    }
    if (of_baselines > 0 && job.first())
        fmt::print(
            "# {} wrong elements are a peer's (Open MPI 4.1 saturates sums of 8 and 16 bits)\n",
            of_baselines);
    return ours;
}

}  // namespace guozhuang::perf
