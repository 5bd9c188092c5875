#include "training/sharing_advice.hpp"
#include "base/error_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/log.hpp>

namespace guozhuang {
namespace {

constexpr std::size_t steps_to_time = 20, bytes_worth_sharing = 1u << 20;

}  // namespace

void SharingAdvice::note_wait(Clock::duration time, const Plan& plan,
                              const ProcessSet& ranks) noexcept try {
    if (waits_.size() == steps_to_time) return;
    waits_.push_back(time);
    if (waits_.size() < steps_to_time || ranks.rank() != 0 ||
        plan.sharable_bytes() < bytes_worth_sharing)
        return;
    const auto middle = waits_.begin() + steps_to_time / 2;
    std::ranges::nth_element(waits_, middle);
    log_message(LogLevel::info,
                fmt::format("DistributedOptimizer {}: step() waits {:.1f} ms (median of {}) for "
                            "gradients in private memory; Memory::share would reduce them where "
                            "they are (measure_sharing() measures what that saves)",
                            base::quote(plan.name()), middle->count(), steps_to_time));
} catch (const std::exception&) {
    // There is no memory, or the session has been closed.
}

}  // namespace guozhuang
