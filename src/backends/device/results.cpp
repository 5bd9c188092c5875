#include "backends/device/results.hpp"

#include <utility>

#include "backends/rows.hpp"
#include "device/owned_memory.hpp"

namespace guozhuang::backends {

using protocol::OperationKind;

engine::Bundle on_host(const engine::Bundle& bundle) {
    auto host = bundle;
    host.device = DeviceKind::host;
    host.entries.clear();
    return host;
}

std::vector<std::int64_t> Results::exchange(const engine::Bundle& bundle,
                                            std::vector<std::int64_t> own,
                                            std::vector<std::int64_t> splits) const {
    const TensorView tensor(own.data(), DType::i64, {static_cast<std::int64_t>(own.size())});
    Result result;
    auto numbers = on_host(bundle);
    numbers.operation = splits.empty() ? OperationKind::all_gather : OperationKind::all_to_all;
    numbers.entries.push_back({.tensor = tensor, .splits = splits, .result = &result});
    deps_.driving.run(numbers);
    return result.as<std::int64_t>();
}

std::vector<std::int64_t> Results::gather(const engine::Bundle& bundle,
                                          std::vector<std::int64_t> own) const {
    return exchange(bundle, std::move(own), {});
}

std::vector<std::vector<std::int64_t>> Results::rows_of(const engine::Bundle& bundle) const {
    const auto ranks = static_cast<std::size_t>(deps_.ranks);
    std::vector<std::vector<std::int64_t>> rows;
    switch (bundle.operation) {
        case OperationKind::all_gather:
            for (const auto& entry : bundle.entries)
                rows.push_back(gather(bundle, {entry.tensor.shape[0]}));
            break;
        case OperationKind::all_to_all:
            for (const auto& entry : bundle.entries)
                rows.push_back(exchange(bundle, {entry.splits.begin(), entry.splits.end()},
                                        std::vector<std::int64_t>(ranks, 1)));
            break;
        case OperationKind::reduce_scatter:
            for (const auto& entry : bundle.entries)
                rows.push_back(
                    {reduce_scatter_rows(entry.tensor.shape[0], entry.splits,
                                         deps_.ranks)[static_cast<std::size_t>(deps_.rank)]});
            break;
        default: break;
    }
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
