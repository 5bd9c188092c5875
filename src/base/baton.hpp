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
/// Every thread has a Part for as long as it takes part; waits with these threads'
/// WaitSettings::baton hand the baton on at every turn, and never park. Deadlines go on by the
/// clock, so a run that is to be repeated has none that matter. Nobody may wait for another part's
/// thread in any other way.
class Baton {
public:
    Baton(int parts, std::uint64_t seed);

    class Part {
    public:
        /// Returns when all parts have come and the baton is this thread's.
        Part(Baton& baton, int number);
        ~Part();  ///< gives the baton away for good
        Part(const Part&) = delete;
        Part& operator=(const Part&) = delete;

    private:
        Baton& baton_;
    };

    /// Hands the baton to a part drawn, perhaps the caller's, and returns when it is back. Only
    /// from the thread that has it.
    void pass();

private:
    static constexpr int nobody = -1;

    int draw() noexcept;
    void give(int part) noexcept;
    void wait_for(int part);

    std::deque<Doorbell> bells_;  ///< by part
    std::vector<int> present_;    ///< for whoever has the baton
    std::uint64_t state_;         ///< of the generator; likewise
    std::atomic<int> arrived_{0};
    std::atomic<int> holder_{nobody};
};

}  // namespace guozhuang::base
