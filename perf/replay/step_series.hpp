#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "peers/baseline.hpp"
#include "replay/gradient_set.hpp"

namespace guozhuang::perf {

/// What a rank has sent, as far as that is known.
struct Sent {
    std::uint64_t bytes = 0;
    std::uint64_t messages = 0;
};

/// One way to reduce a set of gradients, which outlive it, in place.
class StepSeries {
public:
    virtual ~StepSeries() = default;
    virtual std::string_view name() const noexcept = 0;
    virtual ReduceOp op() const noexcept = 0;
    /// One step. Returns the seconds from the end of backward on.
    virtual double step() = 0;
    /// Since the start of the process; empty if nobody counts.
    virtual std::optional<Sent> sent() const { return std::nullopt; }
};

std::unique_ptr<StepSeries> make_guozhuang_step(const Gradients& gradients);
/// Per tensor, fused, flat; the baseline outlives them.
std::vector<std::unique_ptr<StepSeries>> make_baseline_steps(Baseline& baseline,
                                                             const Gradients& gradients);

}  // namespace guozhuang::perf
