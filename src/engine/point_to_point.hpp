#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/control.hpp"
#include "engine/pending.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/matcher.hpp"
#include "protocol/outbox.hpp"
#include "protocol/route.hpp"

namespace guozhuang::engine {

/// Send and receive. A matcher agrees with the peers which operations belong together; then their
/// payloads move, memory to memory. Payloads of device tensors move between the pinned memory that
/// stages them. Nothing here waits: the thread that drives the engine advances it. Not thread-safe:
/// the engine's lock guards it.
class PointToPoint {
public:
    struct Outcome {
        std::shared_ptr<Pending> pending;
        std::exception_ptr error;
    };

    PointToPoint(Control& control, Mail& mail, protocol::GroupRanks group_ranks = {})
        : mail_(mail), matcher_(control.rank(), control.size(), std::move(group_ranks)) {}

    void post(const std::shared_ptr<Pending>& pending);
    void receive(int from, std::span<const std::byte> message);
    /// See Matcher.
    void shut_down(std::string_view reason, bool at_once, int culprit = -1) {
        matcher_.shut_down(reason, at_once, culprit);
    }
    bool have_all_shut_down() const noexcept { return matcher_.have_all_shut_down(); }
    /// The job is over: forgets all operations, including payloads in flight. The caller fails
    /// them.
    void abandon() noexcept;

    /// Whether an operation of this rank waits for its peer or is in flight; whether one is in
    /// flight.
    bool has_operations() const noexcept { return is_moving() || !unmatched_.empty(); }
    bool is_moving() const noexcept { return !moving_.empty(); }
    /// Whether this operation waits for its peer.
    bool is_unmatched(const Pending& pending) const {
        return std::ranges::any_of(
            unmatched_, [&](const auto& each) { return each.second.pending.get() == &pending; });
    }
    bool is_moving(const Pending& pending) const noexcept {
        return std::ranges::any_of(
            moving_, [&](const Payload& each) { return each.pending.get() == &pending; });
    }

    /// Moves payloads forward; true if any of them ended.
    bool advance();
    std::vector<protocol::Outgoing> take_messages() { return matcher_.take_messages(); }
    std::vector<Outcome> take_outcomes() { return std::exchange(outcomes_, {}); }

private:
    enum class Step : std::uint8_t {
        unmailed,  ///< a send waits for its turn, and for its copy in pinned memory
        mailing,
        copying_out,  ///< of a receive: from pinned memory to the tensor on a device
        done
    };
    struct Payload {
        std::shared_ptr<Pending> pending;
        std::shared_ptr<StagedMessage> staged = {};  ///< see Request
        Step step = Step::unmailed;
        Mail::Ticket ticket = 0;

        const protocol::Route& route() const noexcept { return pending->request().route; }
    };

    void carry_out_decisions();
    void begin(Payload payload);
    void mail(Payload& payload);
    bool may_mail(const Payload& payload) const;
    void advance(Payload& payload);

    Mail& mail_;
    protocol::Matcher matcher_;
    std::map<protocol::Matcher::Number, Payload> unmatched_;
    std::vector<Payload> moving_;  ///< in the order in which they were matched
    std::vector<Outcome> outcomes_;
};

}  // namespace guozhuang::engine
