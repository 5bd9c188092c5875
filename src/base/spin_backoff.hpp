#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace guozhuang::base {

/// Whether the waits of a rank may spin. Beside busy threads of other programs they must not: a
/// thread that yields or spins there loses its core for whole time slices, whereas one that sleeps
/// is woken at once. A spin that loses its core twice within four times the time lost suspends
/// spinning for that time. If that happens again within the length of the last suspension after its
/// end, the next is twice as long, up to 64 times. All threads of a rank share one and may call it.
class SpinBackoff {
public:
    /// Calls `now()` only if a turn was late before.
    template <class Now>
    bool is_active(const Now& now) const noexcept {
        const auto until = until_.load(std::memory_order_relaxed);
        return until != 0 && period_.load(std::memory_order_relaxed) != 0 &&
               now().time_since_epoch().count() < until;
    }
    /// A turn of a spin that took too long has just ended. Returns whether spinning is suspended.
    bool note_late(std::chrono::steady_clock::time_point now,
                   std::chrono::steady_clock::duration turn) noexcept {
        const std::int64_t time = now.time_since_epoch().count();
        const std::int64_t shortest = losses_of_a_period * turn.count();
        const std::int64_t last = period_.load(std::memory_order_relaxed);
        const std::int64_t since = time - until_.load(std::memory_order_relaxed);
        // A loss that stopped several threads of the rank at once counts once.
        if (time - turn.count() < until_.load(std::memory_order_relaxed) - last) return last > 0;
        const std::int64_t period = since > std::max(last, shortest)
                                        ? 0
                                        : std::clamp(2 * last, shortest, longest_period * shortest);
        period_.store(period, std::memory_order_relaxed);
        until_.store(time + period, std::memory_order_relaxed);
        return period > 0;
    }

private:
    static constexpr std::int64_t losses_of_a_period = 4, longest_period = 64;

    std::atomic<std::int64_t> until_{0};   ///< a time; 0: no turn was late
    std::atomic<std::int64_t> period_{0};  ///< of the last suspension; 0: of a late turn alone
};

}  // namespace guozhuang::base
