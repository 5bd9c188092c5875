#pragma once

#include <span>

#include "base/wait.hpp"
#include "engine/pump.hpp"
#include "wire/transport.hpp"

namespace guozhuang::wire {

/// A process set as one rank's algorithms see it: who is in it, and how to wait.
struct Group {
    Transport& transport;
    std::span<const int> ranks;    ///< world ranks by group rank
    int group_rank = 0;            ///< of this rank
    Tag tag;                       ///< not of the control lane
    engine::Pump* pump = nullptr;  ///< called while waiting, unless it is null
    /// Waits that last longer fail with Error(timeout).
    base::Deadline deadline = base::no_deadline;

    /// Some of its ranks, including this one, as a new group. The world ranks must outlive it.
    Group subgroup(std::span<const int> world_ranks, int rank) const {
        auto some = *this;
        some.ranks = world_ranks;
        some.group_rank = rank;
        return some;
    }

    /// Wakes the other ranks if they sleep (see base::nudge()).
    void nudge_others() const {
        for (const int peer : ranks)
            if (peer != ranks[static_cast<std::size_t>(group_rank)])
                transport.nudge(peer, base::audience_of(tag.context));
    }

    /// Waits until `ready()`. Throws Error(aborted), Error(timeout), or what `ready` or pump
    /// throws.
    template <class Ready>
    void wait_until(Ready&& ready) const {
        wait_until(ready, transport.wait_settings());
    }
    template <class Ready>
    void wait_until(Ready&& ready, const base::WaitSettings& settings) const {
        if (ready()) return;
        base::WaitLoop wait_loop(transport.doorbell(), settings, deadline);
        for (unsigned look = 1; !ready(); ++look) {
            // A look at the control messages costs as much as one at the data, so it looks rarely
            // while spinning, and always before sleeping.
            const bool pump_now =
                pump && (look % looks_for_each_pump == 0 || wait_loop.about_to_sleep());
            if (pump_now && pump->pump()) {
                wait_loop.progressed();
            } else {
                wait_loop.pause();
            }
        }
    }

private:
    static constexpr unsigned looks_for_each_pump = 8;
};

}  // namespace guozhuang::wire
