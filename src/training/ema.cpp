#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/ema.hpp>
#include <guozhuang/error.hpp>

#include "training/values.hpp"

namespace guozhuang {
namespace {

[[noreturn]] void refuse_ema(const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "Ema: " + problem, {.operation = "step"});
}

}  // namespace

struct Ema::State {
    void require_unswapped() const {
        if (is_swapped)
            refuse_ema("the averages are in the parameters; swap() them back before the next step");
    }

    EmaOptions options;
    std::vector<NamedTensor> values;
    Copies averages;
    std::uint64_t steps = 0;
    bool is_swapped = false;
};

Ema::Ema(std::vector<Parameter> parameters, const EmaOptions& options) {
    if (!(options.decay >= 0 && options.decay < 1))
        refuse_ema(fmt::format("decay is {}; it must be 0 at least and below 1", options.decay));
    auto values = values_of(parameters, "Ema");
    Copies averages(values);
    state_ = std::make_unique<State>(options, std::move(values), std::move(averages));
}
Ema::~Ema() = default;
Ema::Ema(Ema&&) noexcept = default;

void Ema::step() {
    auto& state = *state_;
    state.require_unswapped();
    const auto t = static_cast<double>(state.steps++);
    const auto decay = state.options.warm_up ? std::min(state.options.decay, (1 + t) / (10 + t))
                                             : state.options.decay;
    for (std::size_t i = 0; i < state.values.size(); ++i)
        for_each_element(
            [&]<class T>(T& average, T value) {
                average = static_cast<T>(decay * average + (1 - decay) * value);
            },
            state.averages.tensors()[i].tensor, state.values[i].tensor);
}

void Ema::swap() noexcept {
    for (std::size_t i = 0; i < state_->values.size(); ++i)
        std::ranges::swap_ranges(state_->values[i].tensor.memory(),
                                 state_->averages.tensors()[i].tensor.memory());
    state_->is_swapped = !state_->is_swapped;
}

bool Ema::is_swapped() const noexcept {
    return state_->is_swapped;
}

std::vector<NamedTensor> Ema::state() const {
    state_->require_unswapped();
    std::vector<NamedTensor> all{{"steps", state_->steps}};
    for (const auto& [name, tensor] : state_->averages.tensors())
        all.push_back({"average/" + name, tensor});
    return all;
}

}  // namespace guozhuang
