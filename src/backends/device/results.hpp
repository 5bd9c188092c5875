#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// The same operation, on host tensors that are still to come.
engine::Bundle on_host(const engine::Bundle& bundle);

/// What a path needs to know before it can enqueue operations that have results: how large these
/// are, and where they go. By the thread that drives.
class Results {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;           ///< its index
        int rank = 0, ranks = 1;  ///< this one's in its process set, and how many that has
        std::function<int(int)> world_rank;
        engine::Backend& driving;  ///< moves the numbers of rows
    };
    explicit Results(Dependencies dependencies) : of_(std::move(dependencies)) {}

    /// Of each entry's result, how many rows come from each rank; nothing for operations in place.
    std::vector<std::vector<std::int64_t>> rows_of(const engine::Bundle& bundle) const;
    /// Returns the result's memory on the device: the caller's output if it fits, or memory that
    /// the result gets.
    std::span<std::byte> memory_for(const engine::BundleEntry& entry,
                                    std::span<const std::int64_t> rows) const;
    /// By group rank, what each rank of the set has in `own`: as many numbers on each.
    std::vector<std::int64_t> gather(const engine::Bundle& bundle,
                                     std::vector<std::int64_t> own) const;

private:
    std::vector<std::int64_t> exchange(const engine::Bundle& bundle, std::vector<std::int64_t> own,
                                       std::vector<std::int64_t> splits) const;

    const Dependencies of_;
};

}  // namespace guozhuang::backends
