#pragma once

#include <chrono>
#include <guozhuang/plan.hpp>
#include <guozhuang/process_set.hpp>
#include <vector>

namespace guozhuang {

/// Times the first steps of an optimizer. Then, if the gradients' memory could be shared and is
/// not, the first rank logs at level info what the steps cost.
class SharingAdvice {
public:
    using Clock = std::chrono::steady_clock;

    /// A step of the plan's owner has waited this long for its tensors. A failure here loses the
    /// advice, not the step.
    void note_wait(Clock::duration time, const Plan& plan, const ProcessSet& ranks) noexcept;

private:
    using Milliseconds = std::chrono::duration<double, std::milli>;

    std::vector<Milliseconds> waits_;  ///< of the first steps
};

}  // namespace guozhuang
