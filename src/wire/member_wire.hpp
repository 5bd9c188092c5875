#pragma once

#include <functional>
#include <span>

#include "base/wait.hpp"
#include "collectives/wire.hpp"
#include "wire/transport.hpp"

namespace guozhuang::wire {

/// The Wire of a process set: what the collective algorithms send and receive through. Ranks are positions in the set. One thread at a
/// time. The transport and the member list must outlive it.
///
/// While it waits it calls `pump`, so that control messages do not stand still while data moves.
class MemberWire {
public:
    using Ticket = Transport::Ticket;

    struct Group {
        Transport& transport;
        std::span<const int> members;  ///< world ranks by position in the set
        int position = 0;              ///< this rank's
        Tag tag;                       ///< not of the control lane
        /// Does what else there is to do, without blocking; true if something was done. May throw. Empty: nothing.
        std::function<bool()> pump = {};
        /// When a wait fails with Error(timeout).
        base::Deadline deadline = base::no_deadline;
    };

    explicit MemberWire(Group group) : group_(std::move(group)) {}

    int rank() const noexcept { return group_.position; }
    int size() const noexcept { return static_cast<int>(group_.members.size()); }

    Ticket send(std::span<const std::byte> bytes, int to) { return group_.transport.send(world_rank(to), group_.tag, bytes); }
    Ticket receive(std::span<std::byte> bytes, int from) { return group_.transport.receive(world_rank(from), group_.tag, bytes); }
    bool done(Ticket& ticket) { return group_.transport.test(ticket); }

    /// Throws Error(aborted), Error(timeout), or what the transport or the pump throws; the memory of the message then stays borrowed.
    void wait(Ticket& ticket) {
        if (done(ticket)) return;
        base::Patience patience(group_.transport.doorbell(), group_.transport.wait_settings(), group_.deadline);
        for (unsigned look = 1; !done(ticket); ++look) {
            // A look at the control messages costs as much as one at the data: rarely while spinning, always before sleeping.
            const bool pump_now = group_.pump && (look % looks_for_each_pump == 0 || patience.about_to_park());
            if (pump_now && group_.pump()) {
                patience.progressed();
            } else {
                patience.pause();
            }
        }
    }

private:
    static constexpr unsigned looks_for_each_pump = 8;

    int world_rank(int position) const noexcept { return group_.members[static_cast<std::size_t>(position)]; }

    Group group_;
};

static_assert(Wire<MemberWire>);

}  // namespace guozhuang::wire
