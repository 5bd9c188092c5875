#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/wait.hpp"

namespace guozhuang::base {

/// Lets threads run one at a time, the next one drawn from a seed, so that a run can be repeated:
/// the same seed gives the same order of events.
///
/// Every thread that takes part has a Participant. Its waits, with WaitSettings::turn_scheduler
/// set, pass the turn on at every look, and never sleep; it must not wait for another participant
/// in any other way. Deadlines still follow the clock, so a repeatable run must not depend on any.
class TurnScheduler {
public:
    TurnScheduler(int participants, std::uint64_t seed);

    class Participant {
    public:
        /// Returns when all participants are there and it is this thread's turn.
        Participant(TurnScheduler& scheduler, int number);
        ~Participant();  ///< passes the turn on for good
        Participant(const Participant&) = delete;
        Participant& operator=(const Participant&) = delete;

    private:
        TurnScheduler& scheduler_;
    };

    /// Passes the turn to a randomly drawn participant, perhaps the caller, and returns when it is
    /// this thread's turn again. Only the thread whose turn it is may call it.
    void yield_turn();

private:
    static constexpr int nobody = -1;

    int draw() noexcept;
    void grant(int participant) noexcept;
    void wait_for(int participant);

    std::deque<Doorbell> bells_;  ///< of each participant
    std::vector<int> present_;    ///< read and written in turn
    std::uint64_t state_;         ///< of the generator; likewise
    std::atomic<int> arrived_{0};
    std::atomic<int> holder_{nobody};
};

}  // namespace guozhuang::base
