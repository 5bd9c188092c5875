#include "engine/point_to_point.hpp"

namespace guozhuang::engine {

void PointToPoint::post(P2pOperation operation) {
    const auto& tensor = operation.pending->request().tensors.front();
    const auto number =
        matcher_.post(operation.route, {.dtype = tensor.dtype, .shape = tensor.shape});
    unmatched_.emplace(number, std::move(operation));
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
        auto& operation = found.mapped();
        if (decision.error)
            outcomes_.push_back({std::move(operation.pending), std::move(decision.error)});
        else
            begin(std::move(operation));
    }
}

void PointToPoint::begin(P2pOperation operation) {
    const auto& [route, pending, staged] = operation;
    const auto& tensor = pending->request().tensors.front();
    if (staged) {
        staged->begin();
        if (route.sending) staged->copy_in(pending->request());
    }
    auto& moving = moving_.emplace_back(Moving{.operation = std::move(operation)});
    if (tensor.bytes() == 0)
        moving.step = Step::done;
    else if (may_mail(moving))
        mail(moving);
}

void PointToPoint::mail(Moving& moving) {
    const auto& [route, pending, staged] = moving.operation;
    const auto memory = staged ? staged->memory() : pending->request().tensors.front().memory();
    moving.ticket = route.sending ? mail_.send(route.peer, route.tag, memory)
                                  : mail_.receive(route.peer, route.tag, memory);
    moving.step = Step::mailing;
}

/// An operation is mailed when all before it on its route have been: payloads are taken in the
/// order in which the matcher has paired them. The payload of a send must be there, too.
bool PointToPoint::may_mail(const Moving& moving) const {
    const auto& [route, pending, staged] = moving.operation;
    if (route.sending && staged && !staged->is_copied()) return false;
    for (const auto* before = moving_.data(); before != &moving; ++before)
        if (before->step == Step::unmailed && before->operation.route == route) return false;
    return true;
}

/// Takes the payload to its next step if it is done with this one: a send of a tensor on a device
/// is copied and then mailed, a receive is mailed and then copied. If the mail has failed, a
/// receive is still unmailed here.
void PointToPoint::advance(Moving& moving) {
    const auto& [route, pending, staged] = moving.operation;
    switch (moving.step) {
        case Step::unmailed:
            if (may_mail(moving)) mail(moving);
            return;
        case Step::mailing:
            if (moving.ticket != 0 && !mail_.test(moving.ticket)) return;
            moving.ticket = 0;
            if (staged && !route.sending) {
                moving.step = Step::copying_out;
                return staged->copy_out(*pending);
            }
            break;
        case Step::copying_out:
            if (!staged->is_copied()) return;
            break;
        case Step::done: return;
    }
    moving.step = Step::done;
}

bool PointToPoint::advance() {
    // They advance before the partition: an exception inside it would lose operations.
    for (auto& moving : moving_) advance(moving);
    const auto arrived = std::stable_partition(
        moving_.begin(), moving_.end(), [](const Moving& each) { return each.step != Step::done; });
    const bool any = arrived != moving_.end();
    for (auto done = arrived; done != moving_.end(); ++done)
        outcomes_.push_back({done->operation.pending, nullptr});
    moving_.erase(arrived, moving_.end());
    return any;
}

}  // namespace guozhuang::engine
