#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/grad_scaler.hpp>
#include <limits>
#include <string>
#include <utility>

#include "base/error_text.hpp"

namespace guozhuang {
namespace {

[[noreturn]] void refuse_scaling(const std::string& problem, const std::string& tensor = {}) {
    throw Error(ErrorCode::invalid_argument, "GradScaler: " + problem,
                {.tensor = tensor, .operation = "GradScaler"});
}

void check_options(const GradScalerOptions& options) {
    const auto require = [](bool is_right, const char* name, auto value, const char* range) {
        if (!is_right) refuse_scaling(fmt::format("{} is {}; it must be {}", name, value, range));
    };
    const auto& [initial_scale, growth, backoff, growth_interval, max_norm, elements] = options;
    require(initial_scale >= std::numeric_limits<float>::min() &&
                initial_scale <= std::numeric_limits<float>::max(),
            "initial_scale", initial_scale, "a positive number that f32 can hold");
    require(growth >= 1 && std::isfinite(growth), "growth", growth, "1 at least, and finite");
    require(backoff > 0 && backoff < 1, "backoff", backoff, "between 0 and 1");
    require(growth_interval >= 1, "growth_interval", growth_interval, "1 at least");
    require(max_norm >= 0, "max_norm", max_norm, "0 at least (infinity: nothing is clipped)");
}

void check_gradient(const Parameter& parameter, bool has_master) {
    const auto dtype = parameter.gradient.dtype;
    if (!is_floating(dtype))
        refuse_scaling(fmt::format("the gradient of {} is {}; f16, bf16, f32 and f64 can be scaled",
                                   base::quote(parameter.name), name_of(dtype)),
                       parameter.name);
    if (dtype == DType::f16 && !has_master)
        refuse_scaling(fmt::format("the gradient of {} is f16, which cannot hold it once it is "
                                   "divided by the scale; wrap the optimizer in MasterWeights",
                                   base::quote(parameter.name)),
                       parameter.name);
}

}  // namespace

GradScaler::GradScaler(std::span<const Parameter> parameters, const GradScalerOptions& options,
                       bool has_master, std::function<void(double)> step)
    : options_(options),
      has_master_(has_master),
      step_(std::move(step)),
      scale_(options.initial_scale) {
    check_options(options);
    for (const auto& parameter : parameters) {
        if (!parameter.has_gradient()) continue;
        check_gradient(parameter, has_master);
        const auto& gradient = parameter.gradient;
        if (std::ranges::find(gradients_, gradient.data, &TensorView::data) == gradients_.end())
            gradients_.push_back(gradient);
    }
}

void GradScaler::require_own(const GradScaler& wrapped) const {
    if (&wrapped != this) refuse_scaling("the optimizer wraps another GradScaler");
}

void GradScaler::step() {
    const double norm = guozhuang::norm(gradients_, options_.elements);
    if (!std::isfinite(norm)) {
        has_overflowed_ = true;
        refuse_scaling(
            fmt::format("the reduced gradients are not finite, with a loss scale of {}; call the "
                        "scaler's step(), which leaves such a batch out",
                        scale_));
    }
    if (has_master_)
        step_(factor_of(norm));
    else
        step_in_place(norm);
    if (++good_steps_ >= options_.growth_interval) set_scale(scale_ * options_.growth);
}

/// The factor that brings scaled gradients of this norm to their own length, or to max_norm.
double GradScaler::factor_of(double norm) const {
    return norm / scale_ > options_.max_norm ? options_.max_norm / norm : 1 / scale_;
}

/// Divides the trainer's gradients, once for each batch. They have the norm of those that an
/// earlier call has divided only if they are the same.
void GradScaler::step_in_place(double norm) {
    if (std::exchange(divided_, std::nullopt) != norm)
        for (const auto& gradient : gradients_)
            guozhuang::scale(gradient, factor_of(norm), options_.elements);
    try {
        step_(1);
    } catch (...) {
        divided_ = guozhuang::norm(gradients_, options_.elements);
        throw;
    }
}

void GradScaler::skip() {
    ++skipped_;
    set_scale(scale_ * options_.backoff);
}

/// The bounds are powers of two, whose inverse f32 holds as well.
void GradScaler::set_scale(double scale) {
    good_steps_ = 0;
    scale_ = std::clamp(scale, 0x1p-126, 0x1p126);
}

}  // namespace guozhuang
