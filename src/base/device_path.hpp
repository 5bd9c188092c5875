#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace guozhuang::base {

/// How tensors on devices move among the ranks of a process set (docs/gpu.md), the best path first.
enum class DevicePath : std::uint8_t { automatic, nccl, direct, ring, staged };

inline constexpr std::array<std::string_view, 5> device_path_names = {"auto", "nccl", "direct",
                                                                      "ring", "staged"};

constexpr std::string_view name_of(DevicePath path) noexcept {
    return device_path_names[static_cast<std::size_t>(path)];
}

}  // namespace guozhuang::base
