#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "fashion_mnist/sgd.hpp"
#include "fashion_mnist_cuda/device.hpp"
#include "fashion_mnist_cuda/kernels.hpp"

namespace fashion::cuda {

/// fashion::Sgd of parameters on the current device.
class Sgd {
public:
    /// The stream must outlive the optimizer.
    Sgd(std::vector<Tensor> parameters, float rate, std::size_t steps, const Stream& stream)
        : parameters_(std::move(parameters)), rate_(rate, steps), stream_(stream) {
        for (const auto& parameter : parameters_) {
            const auto& velocity = velocities_.emplace_back(parameter.value.size());
            check(cudaMemset(velocity.data(), 0, parameter.value.size_bytes()));
        }
    }

    /// Enqueued on the stream.
    void step() {
        const float rate = rate_.next();
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const auto& [name, value, gradient] = parameters_[i];
            descend({value.data(), gradient.data(), velocities_[i].data(), rate, momentum},
                    value.size(), stream_.native());
        }
    }

private:
    std::vector<Tensor> parameters_;
    std::vector<DeviceArray<float>> velocities_;
    FallingRate rate_;
    const Stream& stream_;
};

}  // namespace fashion::cuda
