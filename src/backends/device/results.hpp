#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// The same operation without tensors, which the caller adds.
engine::Bundle without_tensors(const engine::Bundle& bundle);
/// An all-gather with the policy of the bundle; the caller adds the tensors.
engine::Bundle all_gather_bundle(const engine::Bundle& bundle);

/// Finds the sizes of results, and memory for them, before a path enqueues the operation. Called by
/// the thread that drives.
class Results {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;           ///< its index
        int rank = 0, ranks = 1;  ///< this rank in its process set, and the set's size
        std::function<int(int)> world_rank;
        engine::Backend& driving;  ///< moves the numbers of rows
    };
    explicit Results(Dependencies dependencies) : deps_(std::move(dependencies)) {}

    /// Rows of each entry's result, by the rank that they come from; a reduce_scatter has one
    /// number, the rows of this rank. Empty for operations in place.
    std::vector<std::vector<std::int64_t>> rows_of(const engine::Bundle& bundle) const;
    /// Returns the result's memory on the device: the caller's output if it fits, otherwise new
    /// memory, which the result owns.
    std::span<std::byte> memory_for(const engine::BundleEntry& entry,
                                    std::span<const std::int64_t> rows) const;
    /// Returns the `own` of all ranks, by group rank; every rank passes the same number of values.
    std::vector<std::int64_t> gather(const engine::Bundle& bundle,
                                     std::vector<std::int64_t> own) const;

private:
    /// The rows of one entry's result.
    template <OperationKind kind>
    std::vector<std::int64_t> rows_of_entry(const engine::Bundle& bundle,
                                            const engine::BundleEntry& entry) const;
    std::vector<std::int64_t> exchange(const engine::Bundle& bundle, std::vector<std::int64_t> own,
                                       std::vector<std::int64_t> splits) const;

    const Dependencies deps_;
};

}  // namespace guozhuang::backends
