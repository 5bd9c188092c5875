#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fashion_mnist/dataset.hpp"
#include "fashion_mnist_cuda/device.hpp"

namespace fashion::cuda {

/// The device's copy of a batch of at most `capacity` samples.
class DeviceBatch {
public:
    explicit DeviceBatch(std::size_t capacity)
        : pinned_images_(capacity * image_pixels),
          pinned_labels_(capacity),
          images_(capacity * image_pixels),
          labels_(capacity) {}

    /// Enqueues the copy. Waits for the copy of the batch before, and for nothing else: so the host
    /// prepares one batch while the device computes with another.
    void upload(const Batch& batch, const Stream& stream) {
        copied_.wait();
        size_ = batch.size();
        upload<float>(batch.images, pinned_images_, images_, stream);
        upload<std::uint8_t>(batch.labels, pinned_labels_, labels_, stream);
        copied_.record(stream);
    }

    std::size_t size() const noexcept { return size_; }
    const float* images() const noexcept { return images_.data(); }
    const std::uint8_t* labels() const noexcept { return labels_.data(); }

private:
    template <class T>
    static void upload(std::span<const T> from, const PinnedArray<T>& pinned,
                       const DeviceArray<T>& to, const Stream& stream) {
        std::copy(from.begin(), from.end(), pinned.data());
        check(cudaMemcpyAsync(to.data(), pinned.data(), from.size_bytes(), cudaMemcpyHostToDevice,
                              stream.native()));
    }

    std::size_t size_ = 0;
    PinnedArray<float> pinned_images_;
    PinnedArray<std::uint8_t> pinned_labels_;
    DeviceArray<float> images_;
    DeviceArray<std::uint8_t> labels_;
    Event copied_;
};

}  // namespace fashion::cuda
