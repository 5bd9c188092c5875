#include "collectives/layout/fragments.hpp"

#include <algorithm>
#include <utility>

namespace guozhuang {
std::size_t room_for(const Fragment& fragment) noexcept {
    return (fragment.bytes + line_bytes - 1) / line_bytes * line_bytes;
}

std::span<std::byte> take(std::span<std::byte>& memory, std::size_t bytes) {
    const auto taken = memory.first(bytes);
    memory = memory.subspan(room_for({.bytes = bytes}));
    return taken;
}

std::span<std::byte> part_of(std::span<std::byte> memory, const Fragment& fragment) {
    const auto first = std::min(fragment.first, memory.size());
    return memory.subspan(first, std::min(fragment.bytes, memory.size() - first));
}

std::span<std::byte> block_of(std::span<std::byte> memory, int block, int blocks) {
    const auto each = room_for({.bytes = memory.size() / static_cast<std::size_t>(blocks) + 1});
    return part_of(memory, {.first = static_cast<std::size_t>(block) * each, .bytes = each});
}

std::vector<std::vector<Fragment>> chunks_of(std::span<const std::size_t> tensors,
                                             std::size_t chunk_bytes) {
    std::vector<std::vector<Fragment>> chunks;
    std::vector<Fragment> shared;
    std::size_t taken = 0;
    const auto close_shared = [&] {
        if (!shared.empty()) chunks.push_back(std::exchange(shared, {}));
        taken = 0;
    };
    for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        for (std::size_t first = 0; first < tensors[tensor]; first += chunk_bytes) {
            const Fragment fragment{tensor, first, std::min(tensors[tensor] - first, chunk_bytes)};
            if (fragment.bytes == chunk_bytes) {
                chunks.push_back({fragment});
                continue;
            }
            if (taken + room_for(fragment) > chunk_bytes) close_shared();
            shared.push_back(fragment);
            taken += room_for(fragment);
        }
    }
    close_shared();
    return chunks;
}

}  // namespace guozhuang
