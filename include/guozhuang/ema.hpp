#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/arena.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <vector>

namespace guozhuang {

/// Options of an Ema.
struct EmaOptions {
    /// How much of the average a step keeps: average = decay average + (1 - decay) value. 0 to
    /// below 1. It remembers some 1 / (1 - decay) steps.
    double decay = 0.999;
    /// Step t, from 0, keeps no more than (1 + t) / (10 + t), so that the values of the start,
    /// which are far from good, are soon forgotten.
    bool warm_up = false;
};

/// An exponential moving average of the parameters' values, with which a model often does better
/// than with the values of its last step (B. Polyak, A. Juditsky, "Acceleration of Stochastic
/// Approximation by Averaging", 1992, for the plain average). Local: ranks that hold the same
/// values and make the same steps have the same averages, bit for bit, so nothing is sent. The
/// parameters' memory must outlive this. One thread at a time.
///
///     ema.step();  // after each optimizer.step()
///
///     ema.swap();  // the averages are in the parameters
///     evaluate(model);
///     ema.swap();  // and training goes on with its own values
class GUOZHUANG_API Ema {
public:
    /// Begins with the current values. Needs no session, but as much memory as the values. Throws
    /// Error(invalid_argument) for a decay out of range, no parameters, empty or duplicate names,
    /// and values that overlap or are not contiguous f32 or f64 in host memory.
    explicit Ema(std::vector<Parameter> parameters, const EmaOptions& options = {});
    ~Ema();
    Ema(Ema&&) noexcept;

    /// Takes the current values into the averages. Throws Error(invalid_argument) while these are
    /// swapped.
    void step();
    /// Exchanges averages and values.
    void swap() noexcept;
    /// Whether the parameters hold the averages.
    bool is_swapped() const noexcept;

    /// The number of steps ("steps") and the averages ("average/NAME"), for checkpoints. Refers to
    /// memory of this. Throws Error(invalid_argument) while the averages are swapped.
    std::vector<NamedTensor> state() const;
    /// For broadcast_optimizer_state().
    template <class V>
    void visit_state(V&& visit) {
        for (const auto& [name, tensor] : state()) visit(name, tensor);
    }

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
