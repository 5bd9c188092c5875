#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/context.hpp"
#include "engine/control.hpp"
#include "engine/life_cycle.hpp"
#include "engine/pending.hpp"
#include "engine/point_to_point.hpp"
#include "engine/stall_reporter.hpp"
#include "engine/submission_queue.hpp"
#include "protocol/negotiator.hpp"

namespace guozhuang::engine {

/// Exchanges submissions, the log, and the sends and receives with the other ranks of the process
/// set. Never blocks. Not thread-safe: the engine's lock guards it.
class ControlPlane {
public:
    ControlPlane(Control& control, Mail& mail, const protocol::Negotiator::Options& options)
        : control_(control),
          group_ranks_(options.group_ranks),
          negotiator_(control.rank(), control.size(), options),
          point_to_point_(control, mail, options.group_ranks) {}

    /// `alone`: nothing else is submitted with it, so a small tensor may travel with it.
    void submit(const std::shared_ptr<Pending>& pending, bool alone);
    void announce(const LifeCycle::Shutdown& shutdown);

    /// Takes the messages that have arrived, and moves payloads forward. True if a message had
    /// arrived or a payload has ended.
    bool receive_messages();
    /// Sends what has become due since the last call.
    void send_messages();
    /// Whether every message has left this rank.
    bool flushed() { return control_.flushed(); }
    /// Whether this rank passes the log on to others.
    bool passes_log_on() const noexcept { return negotiator_.passes_log_on(); }

    /// The log's entries that have become known, and the sends and receives that have ended.
    void take_entries(std::vector<protocol::LogEntry>& entries) {
        negotiator_.take_entries(entries);
    }
    std::vector<PointToPoint::Outcome> take_outcomes() { return point_to_point_.take_outcomes(); }
    /// This rank's requests that the log has not resolved.
    Requests take_unresolved();
    StallReporter::Progress progress_of(const Pending& pending) const;

    PointToPoint& point_to_point() noexcept { return point_to_point_; }
    const PointToPoint& point_to_point() const noexcept { return point_to_point_; }
    /// The job is over: forgets the operations, which the caller fails.
    void abandon() noexcept;

private:
    enum class Channel : std::uint8_t { negotiation = 0, point_to_point = 1 };
    static constexpr Channel last_channel = Channel::point_to_point;

    void receive(const Control::Message& message);
    void send(int to, Channel channel, protocol::Bytes bytes);

    Control& control_;
    const protocol::GroupRanks group_ranks_;
    protocol::Negotiator negotiator_;
    PointToPoint point_to_point_;
};

}  // namespace guozhuang::engine
