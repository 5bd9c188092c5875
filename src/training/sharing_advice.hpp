#pragma once

#include <chrono>
#include <guozhuang/plan.hpp>
#include <guozhuang/process_set.hpp>
#include <vector>

namespace guozhuang {

/// Times the first steps of an optimizer. Then its first rank says, at level info, what they cost
/// if the gradients' memory is not shared, and could be.
class SharingAdvice {
public:
    using Clock = std::chrono::steady_clock;

    /// A step of the plan's owner has waited so long for its tensors. A failure here costs the
    /// advice, not the step.
    void note_wait(Clock::duration time, const Plan& plan, const ProcessSet& ranks) noexcept;

private:
    using Milliseconds = std::chrono::duration<double, std::milli>;

    std::vector<Milliseconds> waits_;  ///< of the first steps
};

}  // namespace guozhuang
