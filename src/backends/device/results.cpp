#include "backends/device/results.hpp"

#include <utility>

#include "backends/rows.hpp"
#include "collectives/layout/rows.hpp"
#include "device/owned_memory.hpp"

namespace guozhuang::backends {

engine::Bundle without_tensors(const engine::Bundle& bundle) {
    auto others = bundle;
    others.entries.clear();
    others.contributions = {};
    return others;
}

engine::Bundle all_gather_bundle(const engine::Bundle& bundle) {
    static const protocol::Description all_gather{.operation = OperationKind::all_gather};
    return {.description = &all_gather, .policy = bundle.policy, .entries = {}};
}

static engine::Bundle all_to_all_bundle(const engine::Bundle& bundle) {
    static const protocol::Description all_to_all{.operation = OperationKind::all_to_all};
    return {.description = &all_to_all, .policy = bundle.policy, .entries = {}};
}

std::vector<std::int64_t> Results::exchange(const engine::Bundle& bundle,
                                            std::vector<std::int64_t> own,
                                            std::vector<std::int64_t> splits) const {
    const TensorView tensor(own.data(), DType::i64, {static_cast<std::int64_t>(own.size())});
    Result result;
    auto numbers = splits.empty() ? all_gather_bundle(bundle) : all_to_all_bundle(bundle);
    numbers.entries.push_back({.tensor = tensor, .splits = splits, .result = &result});
    deps_.driving.run(numbers);
    return result.as<std::int64_t>();
}

std::vector<std::int64_t> Results::gather(const engine::Bundle& bundle,
                                          std::vector<std::int64_t> own) const {
    return exchange(bundle, std::move(own), {});
}

template <>
std::vector<std::int64_t> Results::rows_of_entry<OperationKind::all_gather>(
    const engine::Bundle& bundle, const engine::BundleEntry& entry) const {
    return gather(bundle, {entry.tensor.shape[0]});
}

template <>
std::vector<std::int64_t> Results::rows_of_entry<OperationKind::all_to_all>(
    const engine::Bundle& bundle, const engine::BundleEntry& entry) const {
    return exchange(bundle, {entry.splits.begin(), entry.splits.end()},
                    std::vector<std::int64_t>(static_cast<std::size_t>(deps_.ranks), 1));
}

template <>
std::vector<std::int64_t> Results::rows_of_entry<OperationKind::reduce_scatter>(
    const engine::Bundle&, const engine::BundleEntry& entry) const {
    const auto rows = reduce_scatter_rows(entry.tensor.shape[0], entry.splits, deps_.ranks);
    return {rows[static_cast<std::size_t>(deps_.rank)]};
}

std::vector<std::vector<std::int64_t>> Results::rows_of(const engine::Bundle& bundle) const {
    std::vector<std::vector<std::int64_t>> rows;
    visit(bundle.description->operation, [&]<OperationKind kind>() {
        if constexpr (row_of(kind).has_rows)
            for (const auto& entry : bundle.entries)
                rows.push_back(rows_of_entry<kind>(bundle, entry));
    });
    return rows;
}

std::span<std::byte> Results::memory_for(const engine::BundleEntry& entry,
                                         std::span<const std::int64_t> rows) const {
    require_possible(rows, row_bytes(entry.tensor), deps_.world_rank);
    const auto bytes = describe(*entry.result, entry.tensor, rows);
    entry.result->device = entry.tensor.device;
    if (fits_output(entry, rows, deps_.rank)) return entry.output;
    auto [memory, owner] = device::allocate_owned(deps_.driver, deps_.device, bytes);
    entry.result->device_memory = std::move(owner);
    return memory;
}

}  // namespace guozhuang::backends
