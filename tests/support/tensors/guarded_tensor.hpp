#pragma once

#include <algorithm>
#include <cstddef>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/tensors/device_memory.hpp"

namespace guozhuang::test {

/// A tensor that begins in the middle of a cache line, between bytes that nobody may write.
class GuardedTensor {
public:
    GuardedTensor(DType dtype, Shape shape, Device device)
        : bytes_(2 * guard_bytes + count_of(shape) * size_of(dtype), untouched),
          on_device_(memory_of(device) != nullptr ? device_memory()->put(bytes_) : nullptr),
          view_(
              static_cast<std::byte*>(on_device_ ? on_device_.get() : bytes_.data()) + guard_bytes,
              dtype, std::move(shape), device) {}
    GuardedTensor(const GuardedTensor&) = delete;
    GuardedTensor& operator=(const GuardedTensor&) = delete;
    ~GuardedTensor() = default;

    const TensorView& view() const noexcept { return view_; }
    bool is_intact_around() {
        if (on_device_) device_memory()->get(bytes_, on_device_.get());
        const auto are_untouched = [](std::span<const std::byte> bytes) {
            return std::ranges::all_of(bytes, [](std::byte each) { return each == untouched; });
        };
        const std::span<const std::byte> all(bytes_);
        return are_untouched(all.first(guard_bytes)) && are_untouched(all.last(guard_bytes));
    }

private:
    static constexpr std::size_t guard_bytes = 24;
    static constexpr std::byte untouched{0xab};

    std::vector<std::byte> bytes_;
    std::shared_ptr<void> on_device_;
    TensorView view_;
};

}  // namespace guozhuang::test
