#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace guozhuang {

/// FNV-1a over 8 bytes at a time: enough to see that two buffers differ.
inline std::uint64_t hash_of(std::span<const std::byte> memory) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325u ^ memory.size();
    while (!memory.empty()) {
        std::uint64_t word = 0;
        const auto bytes = std::min(memory.size(), sizeof(word));
        std::memcpy(&word, memory.data(), bytes);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 32;
        memory = memory.subspan(bytes);
    }
    return hash;
}

}  // namespace guozhuang
