#include "bounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

double seconds(std::uint64_t bytes, double bandwidth) {
    return static_cast<double>(bytes) / bandwidth;
}

Json json_of(const Bound& bound) {
    return {{"bytes", bound.bytes}, {"bound_us", bound.seconds * 1e6}};
}

}  // namespace

Bound staged_bound(const DeviceAllreduce& allreduce) {
    const auto bytes = 2 * static_cast<std::uint64_t>(allreduce.sharers) * allreduce.bytes;
    return {bytes, std::max(seconds(bytes, allreduce.bandwidths.transfer), allreduce.wire_seconds)};
}

Bound direct_bound(const DeviceAllreduce& allreduce) {
    const auto bytes = 2 * static_cast<std::uint64_t>(allreduce.ranks) * allreduce.bytes;
    return {bytes, seconds(bytes, allreduce.bandwidths.copy)};
}

Bound ring_bound(const DeviceAllreduce& allreduce) {
    const auto bytes = 5 * static_cast<std::uint64_t>(allreduce.ranks - 1) * allreduce.bytes;
    return {bytes, seconds(bytes, allreduce.bandwidths.copy)};
}

std::optional<Bound> bound_taken(const DeviceAllreduce& allreduce) {
    if (allreduce.path == "staged") return staged_bound(allreduce);
    if (allreduce.sharers != allreduce.ranks) return std::nullopt;
    if (allreduce.path == "direct") return direct_bound(allreduce);
    if (allreduce.path == "ring") return ring_bound(allreduce);
    return std::nullopt;
}

Json json_of_bounds(const DeviceAllreduce& allreduce) {
    Json paths = {{"staged", json_of(staged_bound(allreduce))}};
    if (allreduce.ranks > 1 && allreduce.sharers == allreduce.ranks) {
        paths["direct"] = json_of(direct_bound(allreduce));
        paths["ring"] = json_of(ring_bound(allreduce));
    }
    return paths;
}

double wire_seconds(const MpiJob& job, const std::function<void()>& allreduce) {
    constexpr int times = 5;
    std::vector<double> seconds;
    for (int i = 0; i <= times; ++i) {
        job.align();
        const auto start = Clock::now();
        allreduce();
        if (i > 0) seconds.push_back(seconds_since(start));  // the first one warms up
    }
    return quantile(job.max(seconds), 0.5);
}

TensorDevice::Bandwidths measure_bandwidths(const MpiJob& job, const TensorDevice& device,
                                            JsonLines& lines) {
    const auto found = device.measure(job);
    const double copy = found.copy / 1e9, transfer = found.transfer / 1e9;
    const auto kind = name_of(device.stream().device.kind);
    if (job.first())
        fmt::print("# {} ({}): copies {:.1f} GB/s, to and from the host {:.1f} GB/s\n", kind,
                   device.description(), copy, transfer);
    lines.write({{"kind", "device"},
                 {"device", kind},
                 {"description", device.description()},
                 {"ranks", job.size()},
                 {"sharers", device.sharers()},
                 {"copy_GBps", copy},
                 {"transfer_GBps", transfer}});
    return found;
}

}  // namespace guozhuang::perf
