#pragma once

#include <array>
#include <cstddef>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/runner/report.hpp"
#include "support/tensors/tensors.hpp"

/// A model small enough to work out by hand, and properties that must hold for every trainer.
namespace guozhuang::test {

struct Sample {
    double x1 = 0, x2 = 0, y = 0;
};

/// y = x1 w1 + x2 w2 + b with squared error, from zero.
struct LinearModel {
    std::array<double, 2> weights{};
    double bias = 0;
    std::array<double, 2> weight_gradients{};
    double bias_gradient = 0;

    std::vector<Parameter> parameters() {
        return {{"weights", TensorView(std::span<double>(weights)),
                 TensorView(std::span<double>(weight_gradients))},
                {"bias", bias, bias_gradient}};
    }
    void zero_gradients() {
        weight_gradients = {};
        bias_gradient = 0;
    }
    /// Adds the gradients of the mean loss over the samples, divided by `passes`.
    void backward(std::span<const Sample> samples, double passes = 1) {
        const double share = static_cast<double>(samples.size()) * passes;
        for (const auto& [x1, x2, y] : samples) {
            const double slope = 2 * (x1 * weights[0] + x2 * weights[1] + bias - y) / share;
            weight_gradients[0] += slope * x1;
            weight_gradients[1] += slope * x2;
            bias_gradient += slope;
        }
    }
    std::vector<double> values() const { return {weights[0], weights[1], bias}; }
};

struct Sgd {
    LinearModel& model;
    double rate = 1e-3;
    int steps = 0;

    void step() {
        model.weights[0] -= rate * model.weight_gradients[0];
        model.weights[1] -= rate * model.weight_gradients[1];
        model.bias -= rate * model.bias_gradient;
        ++steps;
    }
};

inline constexpr Sample two_samples[] = {{6, 2, 15}, {5, 2, 12}};

/// Parameters after this many steps, with the batch divided evenly among the ranks and then into
/// passes.
std::vector<double> train(Session& session, std::span<const Sample> batch, int passes, int steps,
                          double rate);

/// The same in one process without the library.
std::vector<double> train_alone(std::span<const Sample> batch, int steps, double rate);

/// Numbers with a few bits, so that inputs are exact.
std::vector<Sample> random_samples(std::size_t count);

bool are_close(const std::vector<double>& a, const std::vector<double>& b, double relative);

/// The whole batch counts the same, whatever the number of ranks and passes. Not bit for bit: the
/// sums of many samples round in different orders.
void same_batch_same_model(Session& session, Report& report);

/// Gradients marked in another order on each rank, in bundles of one parameter and of several.
void hooks_in_any_order(Session& session, Report& report);

/// Two optimizers without names, each with its own parameters of the same names.
void optimizers_side_by_side(Session& session, Report& report);

void parameters_from_any_root(Session& session, Report& report);

/// Each gradient is weighed by itself, whatever bundle it travels in.
void training_with_adasum(Session& session, Report& report);

/// Byte strings of lengths that only their owner knows, some of them empty, with any byte in them.
void byte_strings(Session& session, Report& report);

/// An optimizer's state, with a value of every kind that visit_state() can show.
struct Momentum {
    enum class Phase : std::uint8_t { warm_up, plain };
    std::vector<std::pair<std::string, std::vector<float>>> velocities{{"w", {0, 0, 0}},
                                                                       {"b", {0}}};
    std::size_t step = 0;
    double rate = 0;
    Phase phase = Phase::warm_up;
    bool nesterov = false;

    static Momentum after(std::size_t steps) {
        const auto number = static_cast<float>(steps);
        return {.velocities = {{"w", {number, 2, 3}}, {"b", {-number}}},
                .step = steps,
                .rate = 1 / (1.0 + static_cast<double>(steps)),
                .phase = Phase::plain,
                .nesterov = true};
    }
    template <class V>
    void visit_state(V&& visit) {
        visit("step", step);
        visit("rate", rate);
        visit("phase", phase);
        visit("nesterov", nesterov);
        for (auto& [name, velocity] : velocities) visit("velocity/" + name, velocity);
    }
    friend bool operator==(const Momentum&, const Momentum&) = default;
};

void optimizer_state(Session& session, Report& report);

void unlike_optimizer_states(Session& session, Report& report);

void consistency(Session& session, Report& report);

void metrics(Session& session, Report& report);

/// A parameter that only some ranks have is named.
void different_parameters(Session& session, Report& report);

/// A step that fails on all ranks is over; the next one succeeds.
void failed_step(Session& session, Report& report);

/// If ranks tell each other which gradients they use: gradients that only some have marked, or
/// none, and one that the caller reduces.
void gradients_that_some_ranks_use(Session& session, Report& report);

inline const RankCase all_training_cases[] = {same_batch_same_model,
                                              gradients_that_some_ranks_use,
                                              hooks_in_any_order,
                                              optimizers_side_by_side,
                                              parameters_from_any_root,
                                              training_with_adasum,
                                              byte_strings,
                                              optimizer_state,
                                              unlike_optimizer_states,
                                              consistency,
                                              metrics,
                                              different_parameters,
                                              failed_step};

}  // namespace guozhuang::test
