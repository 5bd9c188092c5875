#pragma once

#include <algorithm>
#include <cstddef>
#include <guozhuang/tensor.hpp>
#include <initializer_list>
#include <memory>
#include <span>

namespace guozhuang::engine {

/// The tensors of a request: one block of memory, which copies share. Only its maker may change
/// them, before the request is submitted. A list that was moved from may only be assigned to.
class SharedTensors {
public:
    SharedTensors() = default;  ///< none
    explicit SharedTensors(std::span<const TensorView> tensors) : size_(tensors.size()) {
        if (tensors.empty()) return;
        tensors_ = std::make_shared<TensorView[]>(tensors.size());
        std::ranges::copy(tensors, begin());
    }
    SharedTensors(std::initializer_list<TensorView> tensors)
        : SharedTensors(std::span(tensors.begin(), tensors.size())) {}

    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    TensorView* begin() noexcept { return tensors_.get(); }
    TensorView* end() noexcept { return begin() + size_; }
    const TensorView* begin() const noexcept { return tensors_.get(); }
    const TensorView* end() const noexcept { return begin() + size_; }
    TensorView& operator[](std::size_t i) noexcept { return begin()[i]; }
    const TensorView& operator[](std::size_t i) const noexcept { return begin()[i]; }
    const TensorView& front() const noexcept { return *begin(); }

    /// Whether both refer to the same block.
    friend bool operator==(const SharedTensors& one, const SharedTensors& other) noexcept {
        return one.tensors_ == other.tensors_;
    }

private:
    std::shared_ptr<TensorView[]> tensors_;
    std::size_t size_ = 0;
};

}  // namespace guozhuang::engine
