#include "engine/control_plane.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <span>

#include "engine/execution.hpp"

namespace guozhuang::engine {

void ControlPlane::submit(const std::shared_ptr<Pending>& pending, bool alone) {
    const auto& request = pending->request();
    if (request.kind == Request::Kind::point_to_point)
        point_to_point_.post(pending);
    else if (request.description->operation == OperationKind::join)
        negotiator_.join(request.name, pending);
    else
        negotiator_.submit(request.name, request.named, request.description, pending,
                           alone ? contribution_of(request) : std::span<const std::byte>());
}

void ControlPlane::announce(const LifeCycle::Shutdown& shutdown) {
    point_to_point_.shut_down(shutdown.reason, shutdown.at_once, shutdown.culprit);
    if (shutdown.at_once)
        negotiator_.quit(shutdown.reason, shutdown.culprit);
    else
        negotiator_.shut_down(shutdown.reason, shutdown.culprit);
}

bool ControlPlane::receive_messages() {
    bool progressed = false;
    while (const auto message = control_.poll()) {
        receive(*message);
        progressed = true;
    }
    return point_to_point_.advance() || progressed;
}

void ControlPlane::receive(const Control::Message& message) {
    const std::span bytes(message.bytes);
    if (bytes.empty() ||
        std::to_integer<std::uint8_t>(bytes[0]) > static_cast<std::uint8_t>(last_channel))
        throw Error(ErrorCode::wire, fmt::format("rank {} sent a control message that is none",
                                                 group_ranks_.world_rank(message.from)));
    if (static_cast<Channel>(bytes[0]) == Channel::negotiation)
        negotiator_.receive(message.from, bytes.subspan(1));
    else
        point_to_point_.receive(message.from, bytes.subspan(1));
}

void ControlPlane::send_messages() {
    for (auto& message : point_to_point_.take_messages())
        send(message.to, Channel::point_to_point, std::move(message.bytes));
    for (auto& message : negotiator_.take_messages())
        send(message.to, Channel::negotiation, std::move(message.bytes));
}

void ControlPlane::send(int to, Channel channel, protocol::Bytes bytes) {
    bytes.insert(bytes.begin(), static_cast<std::byte>(channel));
    control_.send(to, std::move(bytes));
}

Requests ControlPlane::take_unresolved() {
    Requests requests;
    for (auto& submitter : negotiator_.take_unresolved())
        requests.push_back(std::static_pointer_cast<Pending>(std::move(submitter)));
    return requests;
}

StallReporter::Progress ControlPlane::progress_of(const Pending& pending) const {
    return {.is_resolved = !negotiator_.awaits(pending.request().name),
            .is_unmatched = point_to_point_.is_unmatched(pending)};
}

void ControlPlane::abandon() noexcept {
    point_to_point_.abandon();
    negotiator_.forget_submissions();
}

}  // namespace guozhuang::engine
