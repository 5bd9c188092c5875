#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "model.hpp"

namespace fashion {

/// Stochastic gradient descent with momentum 0.9 and a learning rate that falls linearly, from
/// `rate` to 0 after `steps` steps.
class Sgd {
public:
    Sgd(std::vector<Tensor> parameters, float rate, std::size_t steps)
        : parameters_(std::move(parameters)), rate_(rate), steps_(steps) {
        for (const auto& parameter : parameters_) velocities_.emplace_back(parameter.value.size());
    }

    void step() {
        const float rate = rate_ * (1 - static_cast<float>(step_++) / static_cast<float>(steps_));
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const auto& [name, value, gradient] = parameters_[i];
            auto& velocity = velocities_[i];
            for (std::size_t j = 0; j < value.size(); ++j) {
                velocity[j] = 0.9F * velocity[j] + gradient[j];
                value[j] -= rate * velocity[j];
            }
        }
    }

private:
    std::vector<Tensor> parameters_;
    std::vector<std::vector<float>> velocities_;
    float rate_;
    std::size_t steps_;
    std::size_t step_ = 0;
};

}  // namespace fashion
