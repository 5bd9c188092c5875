#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "base/failpoint.hpp"
#include "collectives/concepts/wire.hpp"
#include "wire/group/group.hpp"

namespace guozhuang::wire {

/// The Wire of a process set: collective algorithms send and receive through it. For one thread at
/// a time. Everything that the group refers to must outlive it.
class GroupWire {
public:
    using Ticket = Transport::Ticket;

    explicit GroupWire(const Group& group)
        : group_(group), window_bytes_(window_bytes_of(group.transport.topology(), group.ranks)) {}

    int rank() const noexcept { return group_.group_rank; }
    int world_rank(int group_rank) const noexcept {
        return group_.ranks[static_cast<std::size_t>(group_rank)];
    }
    int size() const noexcept { return static_cast<int>(group_.ranks.size()); }
    std::size_t window_bytes() const noexcept { return window_bytes_; }

    Ticket send(std::span<const std::byte> bytes, int to) {
        return or_abandon([&] {
            base::pass(base::Failpoint::segment_send);
            return group_.transport.send(world_rank(to), group_.tag, bytes);
        });
    }
    Ticket receive(std::span<std::byte> bytes, int from) {
        return or_abandon([&] {
            base::pass(base::Failpoint::segment_receive);
            return group_.transport.receive(world_rank(from), group_.tag, bytes);
        });
    }
    bool done(Ticket& ticket) { return group_.transport.test(ticket); }

    /// Throws Error(aborted), Error(timeout), or what the transport or the pump throws.
    void wait(Ticket& ticket) {
        auto settings = group_.transport.wait_settings();
        settings.sleep_limit = std::min(settings.sleep_limit, base::longest_sleep_for_messages);
        settings.long_sleep_limit = {};
        or_abandon([&] { group_.wait_until([&] { return done(ticket); }, settings); });
    }

private:
    /// The bytes that a link of 10 Gbit/s carries in one round trip between hosts; 0 on one host.
    /// Bounded, because algorithms need scratch memory for them.
    static std::size_t window_bytes_of(const topology::Topology& topology,
                                       std::span<const int> ranks) noexcept {
        constexpr double bytes_per_ns = 1.25;
        constexpr auto most = std::size_t{16} << 20;
        const bool is_far =
            std::ranges::any_of(ranks, [&](int rank) { return topology.is_far(rank); });
        const auto wanted = bytes_per_ns * static_cast<double>(topology.round_trip.count());
        return is_far ? std::min(most, static_cast<std::size_t>(wanted)) : 0;
    }

    /// After an exception the job is over for this rank. All its messages are abandoned, because
    /// the algorithm's memory is freed with the exception.
    template <class Act>
    std::invoke_result_t<const Act&> or_abandon(const Act& act) {
        try {
            return act();
        } catch (...) {
            group_.transport.abandon();
            throw;
        }
    }

    Group group_;
    std::size_t window_bytes_;
};

static_assert(Wire<GroupWire>);

}  // namespace guozhuang::wire
