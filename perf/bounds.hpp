#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "json_lines.hpp"
#include "tensor_device.hpp"

namespace guozhuang::perf {

/// One allreduce of tensors on devices, and what it needs.
struct DeviceAllreduce {
    std::size_t bytes;  ///< of each rank
    int ranks;
    int sharers;          ///< ranks of one device
    double wire_seconds;  ///< what the same takes in memory of the host
    TensorDevice::Bandwidths bandwidths;
    std::string path;  ///< by which the library has done it
};

/// Bytes that an allreduce moves through the device or over its link to the host, and a lower bound
/// of its time.
struct Bound {
    std::uint64_t bytes;
    double seconds;
};

/// Each rank's bytes go to the host and come back, both at once, and beside that the ranks do the
/// same allreduce on the host.
Bound staged_bound(const DeviceAllreduce& allreduce);
/// The ranks share a device, on which each input is read once and each output written once.
Bound direct_bound(const DeviceAllreduce& allreduce);
/// The ranks share a device, and pass blocks around: hops that add read two and write one, others
/// read one and write one.
Bound ring_bound(const DeviceAllreduce& allreduce);

/// The bound of the path that the library took. None for paths over links between devices, which
/// nothing here measures: NCCL, and direct or ring unless all ranks share one device.
std::optional<Bound> bound_taken(const DeviceAllreduce& allreduce);

/// All of them, by path; direct and ring only where the ranks share a device.
Json json_of_bounds(const DeviceAllreduce& allreduce);

/// The median time of an allreduce on the host, of the slowest rank. Collective.
double wire_seconds(const MpiJob& job, const std::function<void()>& allreduce);

/// Measures the devices' bandwidths, prints them and writes them as a line. Collective.
TensorDevice::Bandwidths measure_bandwidths(const MpiJob& job, const TensorDevice& device,
                                            JsonLines& lines);

}  // namespace guozhuang::perf
