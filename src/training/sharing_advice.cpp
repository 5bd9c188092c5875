#include "training/sharing_advice.hpp"
#include "base/error_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/log.hpp>

namespace guozhuang {
namespace {

constexpr std::size_t steps_to_time = 20, bytes_worth_sharing = 1u << 20;

}  // namespace

/// Of p ranks each reads and writes 2n bytes to reduce n in place, and (5 - 2/p)n to stage them.
void SharingAdvice::note_wait(Clock::duration time, const Plan& plan,
                              const ProcessSet& ranks) noexcept try {
    if (waits_.size() == steps_to_time) return;
    waits_.push_back(time);
    if (waits_.size() < steps_to_time) return;
    const auto bytes = plan.sharable_bytes();
    if (bytes < bytes_worth_sharing || ranks.rank() != 0) return;
    const auto middle = waits_.begin() + steps_to_time / 2;
    std::ranges::nth_element(waits_, middle);
    log_message(LogLevel::info,
                fmt::format("DistributedOptimizer {}: step() waits {:.1f} ms (median of {}) for "
                            "gradients of which {:.1f} MB are in private memory, where no other "
                            "rank reaches them. Memory::share would reduce these where they are, "
                            "which moves {:.1f} times fewer bytes",
                            base::quote(plan.name()), middle->count(), steps_to_time,
                            static_cast<double>(bytes) / 1e6, 2.5 - 1.0 / ranks.size()));
} catch (const std::exception&) {
    // There is no memory, or the session has been closed.
}

}  // namespace guozhuang
