#include "training/measure_sharing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <map>
#include <new>
#include <utility>

#include "base/keep_for_ever.hpp"
#include "training/refuse.hpp"

namespace guozhuang {
namespace {

constexpr int private_reductions = 5, shared_reductions = 9;  // the first of a turn is left out

bool is_on_host(const Parameter& parameter) {
    return parameter.has_gradient() && parameter.gradient.device.kind == DeviceKind::host;
}

/// Zeros like the gradients of a model, in their own memory, and their reducer.
class Trial {
public:
    Trial(const std::vector<Parameter>& model, const OptimizerOptions& options)
        : options_(options), reducer_(zeros_like(model), options) {}
    /// After a failure messages may still write to the zeros.
    ~Trial() {
        if (std::uncaught_exceptions() > 0) base::keep_for_ever(std::move(zeros_));
    }
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;

    const std::vector<TensorView>& tensors() const noexcept { return tensors_; }

    /// Reduces them several times, and adds the seconds of each reduction except the first. All
    /// ranks begin together.
    void take_turn(int reductions, std::vector<double>& seconds) {
        using Clock = std::chrono::steady_clock;
        for (int i = 0; i < reductions; ++i) {
            barrier({.name = options_.name,
                     .session = options_.session,
                     .process_set = options_.process_set});
            const auto start = Clock::now();
            reducer_.synchronize_for(std::chrono::hours(1));  // which does not advise to share
            reducer_.finish_pass();
            if (i > 0)
                seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        }
    }

private:
    std::vector<Parameter> zeros_like(const std::vector<Parameter>& model) {
        std::vector<Parameter> parameters;
        for (const auto& parameter : model) {
            if (!is_on_host(parameter)) continue;
            auto tensor = parameter.gradient;
            const auto [zeros, is_new] =
                zeros_.try_emplace({tensor.data, tensor.bytes()}, tensor.bytes());
            tensor.data = zeros->second.data();
            tensors_.push_back(tensor);
            parameters.push_back({parameter.name, tensor, tensor});
        }
        return parameters;
    }

    OptimizerOptions options_;
    /// The keys are a gradient's address and size, so tied weights have one entry.
    std::map<std::pair<const void*, std::size_t>, std::vector<std::byte>> zeros_;
    std::vector<TensorView> tensors_;
    GradientReducer reducer_;
};

double median(std::vector<double>& seconds) {
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::ranges::nth_element(seconds, middle);
    return *middle;
}

/// Replaces each value by the largest that any rank has.
template <std::size_t count>
std::array<double, count> most(std::array<double, count> values, const OptimizerOptions& options) {
    allreduce(values, {.name = options.name,
                       .op = ReduceOp::max,
                       .session = options.session,
                       .process_set = options.process_set});
    return values;
}

}  // namespace

SharingTimes measure_sharing(const std::vector<Parameter>& model, const OptimizerOptions& given,
                             const std::string& name, const ProcessSet& ranks, bool has_begun) try {
    auto options = given;
    options.name = fmt::format("trial of {}", name);
    options.backward_passes_per_step = 1;
    options.stream = {};
    options.check_values = false;
    options.memory = Memory::as_is;
    options.uses = {};
    options.groups = {};
    options.process_set = ranks;
    const bool is_elsewhere = std::ranges::none_of(model, is_on_host);
    const auto [any_has_begun, any_is_elsewhere] =
        most<2>({has_begun ? 1.0 : 0.0, is_elsewhere ? 1.0 : 0.0}, options);
    if (any_has_begun > 0)
        refuse(name,
               fmt::format("measure_sharing() comes between steps, but a batch has begun{}",
                           has_begun ? "" : " on another rank"),
               {}, "measure_sharing");
    if (any_is_elsewhere > 0) return {};

    Trial trial(model, options);
    bool is_shared = ranks.size() > 1 && !ranks.state();
    std::vector<double> in_private, in_shared;
    trial.take_turn(private_reductions, in_private);
    if (is_shared) {
        const auto shared = share(trial.tensors(), options.session);
        is_shared = shared.is_shared();
        trial.take_turn(shared_reductions, in_shared);
    }
    trial.take_turn(private_reductions, in_private);
    if (in_shared.empty()) in_shared = in_private;
    const auto [private_s, shared_s, any_is_private] =
        most<3>({median(in_private), median(in_shared), is_shared ? 0.0 : 1.0}, options);
    const bool possible = any_is_private == 0;
    return {possible, private_s, possible ? shared_s : private_s};
} catch (const std::bad_alloc&) {  // the other ranks would wait for this one
    ranks.end_job_without_memory("measure_sharing");
}

}  // namespace guozhuang
