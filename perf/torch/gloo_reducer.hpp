#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <guozhuang/operations.hpp>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace guozhuang::perf {

/// A PyTorch process group over Gloo and the loopback device. Collective.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(int rank, int size) {
    const std::string host = "127.0.0.1";
    const auto open = [&](bool serve, std::uint16_t port) {
        c10d::TCPStoreOptions options;
        options.port = port;
        options.isServer = serve;
        options.waitWorkers = false;
        return c10::make_intrusive<c10d::TCPStore>(host, options);
    };
    c10::intrusive_ptr<c10d::TCPStore> store;
    if (rank == 0) store = open(true, 0);
    std::uint16_t port = store ? store->getPort() : 0;
    broadcast(port, 0);
    if (!store) store = open(false, port);
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

/// A c10d::Reducer as PyTorch's DistributedDataParallel makes it for a module on a CPU: with its
/// sizes of buckets, and gradients that are views of them, which spares a copy.
inline std::unique_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                                   c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const std::size_t first = c10d::kDefaultFirstBucketBytes, others = c10d::kDefaultBucketBytesCap;
    const std::vector<bool> sparse(parameters.size());
    auto [buckets, limits] =
        c10d::compute_bucket_assignment_by_size(parameters, {first, others}, sparse);
    std::ranges::reverse(buckets);
    std::ranges::reverse(limits);
    return std::make_unique<c10d::Reducer>(
        parameters, buckets, limits, std::move(group), sparse, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true,
        std::unordered_map<std::size_t, std::string>(), c10d::kDefaultFirstBucketBytes);
}

}  // namespace guozhuang::perf
