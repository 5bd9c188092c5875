#pragma once

#include <cstddef>
#include <vector>

#include "fashion_mnist_cuda/device.hpp"

namespace fashion::cuda {

/// The loss of each step of an epoch: on the device, until somebody wants to see them.
class Losses {
public:
    explicit Losses(std::size_t steps) : losses_(steps) {}

    /// Where the next step writes its loss.
    double* next() noexcept { return losses_.data() + size_++; }
    std::size_t size() const noexcept { return size_; }

    /// Copies the losses so far to the host. Waits for the device.
    std::vector<double> read() const {
        std::vector<double> losses(size_);
        copy<double>(losses, losses_.all().first(size_));
        return losses;
    }

private:
    DeviceArray<double> losses_;
    std::size_t size_ = 0;
};

}  // namespace fashion::cuda
