#include "engine/point_to_point.hpp"

#include "engine/staged_message.hpp"

namespace guozhuang::engine {

void PointToPoint::post(const std::shared_ptr<Pending>& pending) {
    const auto& request = pending->request();
    const auto& tensor = request.tensors.front();
    const auto number =
        matcher_.post(request.route, {.dtype = tensor.dtype, .shape = tensor.shape});
    unmatched_.emplace(number, Payload{.pending = pending, .staged = pending->take_staged()});
    carry_out_decisions();
}

void PointToPoint::receive(int from, std::span<const std::byte> message) {
    matcher_.receive(from, message);
    carry_out_decisions();
}

void PointToPoint::abandon() noexcept {
    matcher_.abandon();
    unmatched_.clear();
    moving_.clear();
    outcomes_.clear();
}

void PointToPoint::carry_out_decisions() {
    for (auto& decision : matcher_.take_decisions()) {
        auto found = unmatched_.extract(decision.operation);
        if (found.empty()) continue;  // there was no memory left to post it
        auto& payload = found.mapped();
        if (decision.error)
            outcomes_.push_back({std::move(payload.pending), std::move(decision.error)});
        else
            begin(std::move(payload));
    }
}

void PointToPoint::begin(Payload payload) {
    const auto& request = payload.pending->request();
    if (payload.staged) {
        payload.staged->begin();
        if (request.route.sending) payload.staged->copy_in(request);
    }
    auto& moving = moving_.emplace_back(std::move(payload));
    if (request.tensors.front().bytes() == 0)
        moving.step = Step::done;
    else if (may_mail(moving))
        mail(moving);
}

void PointToPoint::mail(Payload& payload) {
    const auto& route = payload.route();
    const auto memory = payload.staged ? payload.staged->memory()
                                       : payload.pending->request().tensors.front().memory();
    payload.ticket = route.sending ? mail_.send(route.peer, route.tag, memory)
                                   : mail_.receive(route.peer, route.tag, memory);
    payload.step = Step::mailing;
}

/// Mails a payload once all earlier ones on its route are mailed: the peer takes them in the order
/// in which the matcher has paired their operations. The payload of a send must also be in memory.
bool PointToPoint::may_mail(const Payload& payload) const {
    const auto& route = payload.route();
    if (route.sending && payload.staged && !payload.staged->is_copied()) return false;
    for (const auto* before = moving_.data(); before != &payload; ++before)
        if (before->step == Step::unmailed && before->route() == route) return false;
    return true;
}

/// Takes the payload to its next step once this one is done: a send of a device tensor is copied
/// and then mailed, a receive is mailed and then copied. If the mail has failed, a receive is still
/// unmailed here.
void PointToPoint::advance(Payload& payload) {
    switch (payload.step) {
        case Step::unmailed:
            if (may_mail(payload)) mail(payload);
            return;
        case Step::mailing:
            if (payload.ticket != 0 && !mail_.test(payload.ticket)) return;
            payload.ticket = 0;
            if (payload.staged && !payload.route().sending) {
                payload.step = Step::copying_out;
                return payload.staged->copy_out(*payload.pending);
            }
            break;
        case Step::copying_out:
            if (!payload.staged->is_copied()) return;
            break;
        case Step::done: return;
    }
    payload.step = Step::done;
}

bool PointToPoint::advance() {
    // They advance before the partition: an exception inside it would lose operations.
    for (auto& payload : moving_) advance(payload);
    const auto arrived =
        std::stable_partition(moving_.begin(), moving_.end(),
                              [](const Payload& each) { return each.step != Step::done; });
    const bool any = arrived != moving_.end();
    for (auto done = arrived; done != moving_.end(); ++done)
        outcomes_.push_back({done->pending, nullptr});
    moving_.erase(arrived, moving_.end());
    return any;
}

}  // namespace guozhuang::engine
