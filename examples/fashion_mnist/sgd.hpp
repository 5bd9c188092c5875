#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model.hpp"

namespace fashion {

inline constexpr float momentum = 0.9F;

/// A learning rate that falls linearly, from `rate` to 0 after `steps` steps.
class FallingRate {
public:
    FallingRate(float rate, std::size_t steps) : rate_(rate), steps_(steps) {}

    float next() noexcept {
        return rate_ * (1 - static_cast<float>(step_++) / static_cast<float>(steps_));
    }
    /// Sets how many steps are left.
    void replan(std::size_t steps) noexcept { steps_ = step_ + steps; }

    template <class Visit>
    void visit_state(Visit&& visit) {
        visit("rate/step", step_);
    }

private:
    float rate_;
    std::uint64_t steps_;
    std::uint64_t step_ = 0;
};

/// Stochastic gradient descent with momentum and a falling learning rate.
class Sgd {
public:
    Sgd(std::vector<Tensor> parameters, float rate, std::size_t steps)
        : parameters_(std::move(parameters)), rate_(rate, steps) {
        for (const auto& parameter : parameters_) velocities_.emplace_back(parameter.value.size());
    }

    void step() {
        const float rate = rate_.next();
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const auto& [name, value, gradient] = parameters_[i];
            auto& velocity = velocities_[i];
            for (std::size_t j = 0; j < value.size(); ++j) {
                velocity[j] = momentum * velocity[j] + gradient[j];
                value[j] -= rate * velocity[j];
            }
        }
    }

    /// Sets how many steps are left.
    void replan(std::size_t steps) noexcept { rate_.replan(steps); }

    template <class Visit>
    void visit_state(Visit&& visit) {
        rate_.visit_state(visit);
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            visit("velocity/" + parameters_[i].name, velocities_[i]);
    }

private:
    std::vector<Tensor> parameters_;
    std::vector<std::vector<float>> velocities_;
    FallingRate rate_;
};

}  // namespace fashion
