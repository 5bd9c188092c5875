#include "backends/device/packing.hpp"

namespace guozhuang::backends {

Packing packed(const engine::Bundle& bundle, std::span<const Fragment> fragments) {
    Packing packing;
    auto& [copies, runs] = packing;
    std::size_t first = 0;
    for (const auto& fragment : fragments) {
        const auto& tensor = bundle.entries[fragment.tensor].tensor;
        const auto memory = tensor.memory().subspan(fragment.first, fragment.bytes);
        const bool touches =
            !copies.empty() && copies.back().dtype == tensor.dtype &&
            copies.back().first + copies.back().tensors.size() == first &&
            copies.back().tensors.data() + copies.back().tensors.size() == memory.data();
        if (!touches) copies.push_back({tensor.dtype, memory.first(0), first});
        auto& tensors = copies.back().tensors;
        tensors = {tensors.data(), tensors.size() + memory.size()};
        if (runs.empty() || runs.back().dtype != tensor.dtype)
            runs.push_back({tensor.dtype, first, 0});
        runs.back().bytes = first + memory.size() - runs.back().first;
        first += room_for(fragment);
    }
    return packing;
}

}  // namespace guozhuang::backends
