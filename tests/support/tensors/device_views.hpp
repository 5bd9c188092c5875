#pragma once

#include <cstdint>
#include <guozhuang/tensor.hpp>
#include <vector>

namespace guozhuang::test {

inline constexpr Device on_host{}, on_fake_device{DeviceKind::cuda, 0};

/// A view of the numbers as device memory.
inline TensorView view_of(std::vector<float>& numbers, Device device = {}) {
    return {numbers.data(), DType::f32, {static_cast<std::int64_t>(numbers.size())}, device};
}

}  // namespace guozhuang::test
