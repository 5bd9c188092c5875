#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/wait.hpp"

namespace guozhuang::base {

/// Lets threads run one at a time, the next drawn from a seed, so that a run of them can be
/// repeated: the same seed gives the same order of events.
///
/// Every thread has a Participant for as long as it takes part; waits with these threads'
/// WaitSettings::turn_scheduler pass the turn on at every look, and never park. Deadlines go on by
/// the clock, so a run that is to be repeated has none that matter. Nobody may wait for another
/// participant's thread in any other way.
class TurnScheduler {
public:
    TurnScheduler(int participants, std::uint64_t seed);

    class Participant {
    public:
        /// Returns when all participants have come and it is this thread's turn.
        Participant(TurnScheduler& scheduler, int number);
        ~Participant();  ///< gives its turn away for good
        Participant(const Participant&) = delete;
        Participant& operator=(const Participant&) = delete;

    private:
        TurnScheduler& scheduler_;
    };

    /// Passes the turn to a participant drawn, perhaps the caller's, and returns when it is back.
    /// Only from the thread whose turn it is.
    void yield_turn();

private:
    static constexpr int nobody = -1;

    int draw() noexcept;
    void grant(int participant) noexcept;
    void wait_for(int participant);

    std::deque<Doorbell> bells_;  ///< by participant
    std::vector<int> present_;    ///< for the thread whose turn it is
    std::uint64_t state_;         ///< of the generator; likewise
    std::atomic<int> arrived_{0};
    std::atomic<int> holder_{nobody};
};

}  // namespace guozhuang::base
