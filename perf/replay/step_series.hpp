#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "baselines/baseline.hpp"
#include "replay/gradient_set.hpp"

namespace guozhuang::perf {

/// Bytes and messages that this rank has sent.
struct Sent {
    std::uint64_t bytes = 0;
    std::uint64_t messages = 0;
};

/// One way to reduce a set of gradients in place. The gradients must outlive it.
class StepSeries {
public:
    virtual ~StepSeries() = default;
    virtual std::string_view name() const noexcept = 0;
    virtual ReduceOp op() const noexcept = 0;
    /// Runs one step. Returns the seconds since the end of backward.
    virtual double step() = 0;
    /// Since the start of the process; empty if it is not counted.
    virtual std::optional<Sent> sent() const { return std::nullopt; }
};

/// An optimizer's step.
std::unique_ptr<StepSeries> make_guozhuang_step(const Gradients& gradients);
/// An asynchronous call for each gradient, in the order of backward; then waits for all.
std::unique_ptr<StepSeries> make_guozhuang_calls(const Gradients& gradients);
/// The three ways: per tensor, fused, flat. The baseline must outlive them.
std::vector<std::unique_ptr<StepSeries>> make_baseline_steps(Baseline& baseline,
                                                             const Gradients& gradients);

}  // namespace guozhuang::perf
