#include "backends/device/packing.hpp"

namespace guozhuang::backends {

Packing packed(const engine::Bundle& bundle, std::span<const Fragment> fragments) {
    Packing packing;
    auto& [copies, runs] = packing;
    std::size_t first = 0;
    for (const auto& fragment : fragments) {
        const auto& tensor = bundle.entries[fragment.tensor].tensor;
        const auto memory = tensor.memory().subspan(fragment.first, fragment.bytes);
        copies.push_back({tensor.dtype, memory, first});
        if (runs.empty() || runs.back().dtype != tensor.dtype)
            runs.push_back({tensor.dtype, first, 0});
        runs.back().bytes = first + memory.size() - runs.back().first;
        first += room_for(fragment);
    }
    return packing;
}

PackedTensors::PackedTensors(const BundleWork& work, std::size_t chunk_bytes) : work_(work) {
    std::vector<std::size_t> sizes;
    for (const auto& entry : work.bundle.entries) sizes.push_back(entry.tensor.bytes());
    for (const auto& fragments : chunks_of(sizes, chunk_bytes))
        packings_.push_back(packed(work.bundle, fragments));
}

void PackedTensors::put(std::size_t chunk, std::span<std::byte> memory) const {
    work_.copy(to(memory, chunk));
}

void PackedTensors::put_prescaled(std::size_t chunk, std::span<std::byte> memory) const {
    work_.copy(to(memory, chunk), {.scale = work_.bundle.description->prescale});
}

void PackedTensors::get(std::size_t chunk, std::span<const std::byte> memory) const {
    BundleWork::Copies copies;
    for (const auto& [dtype, tensor, first] : packings_[chunk].copies)
        copies.push_back({tensor, memory.subspan(first, tensor.size()), dtype});
    work_.copy(copies);
}

BundleWork::Copies PackedTensors::to(std::span<std::byte> memory, std::size_t chunk) const {
    BundleWork::Copies copies;
    for (const auto& [dtype, tensor, first] : packings_[chunk].copies)
        copies.push_back({memory.subspan(first, tensor.size()), tensor, dtype});
    return copies;
}

}  // namespace guozhuang::backends
