#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "layers.hpp"

namespace transformer {

/// Adam (D. P. Kingma, J. Ba, 2015). The learning rate rises over the first twentieth of all steps,
/// then falls to 0, both linearly.
class Adam {
public:
    static constexpr float beta1 = 0.9F, beta2 = 0.99F;

    Adam(std::vector<Tensor> parameters, float rate, std::size_t steps)
        : parameters_(std::move(parameters)), rate_(rate), steps_(steps) {
        for (const auto& parameter : parameters_) {
            means_.emplace_back(parameter.value.size());
            squares_.emplace_back(parameter.value.size());
        }
    }

    void step() {
        const float rate = this->rate(step_++);
        const float bias1 = 1 - std::pow(beta1, static_cast<float>(step_)),
                    bias2 = 1 - std::pow(beta2, static_cast<float>(step_));
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const auto& [name, value, gradient] = parameters_[i];
            for (std::size_t j = 0; j < value.size(); ++j) {
                float& mean = means_[i][j] = beta1 * means_[i][j] + (1 - beta1) * gradient[j];
                float& square = squares_[i][j] =
                    beta2 * squares_[i][j] + (1 - beta2) * gradient[j] * gradient[j];
                value[j] -= rate * (mean / bias1) / (std::sqrt(square / bias2) + 1e-8F);
            }
        }
    }

    /// The learning rate of a step; the first is 0.
    float rate(std::uint64_t step) const {
        const float done = static_cast<float>(step) / static_cast<float>(steps_),
                    warm = 20 * (static_cast<float>(step) + 1) / static_cast<float>(steps_);
        return rate_ * std::min(warm, 1 - done);
    }

    template <class Visit>
    void visit_state(Visit&& visit) {
        visit("step", step_);
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            visit("mean/" + parameters_[i].name, means_[i]);
            visit("square/" + parameters_[i].name, squares_[i]);
        }
    }

private:
    std::vector<Tensor> parameters_;
    std::vector<std::vector<float>> means_, squares_;
    float rate_;
    std::uint64_t steps_;
    std::uint64_t step_ = 0;
};

}  // namespace transformer
