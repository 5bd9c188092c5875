#include "protocol/matcher.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <guozhuang/error.hpp>
#include <limits>

namespace guozhuang::protocol {
namespace {

const char* verb(const Route& route) noexcept {
    return route.sending ? "send" : "recv";
}

std::string print(const TensorDescription& tensor) {
    return fmt::format("{} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", "));
}

}  // namespace

Matcher::Number Matcher::post(const Route& route, TensorDescription tensor) {
    const auto number = ++last_posted_;
    const auto gone = shutdowns_.find(route.peer);
    if (gone != shutdowns_.end() && gone->second.at_once) {
        decisions_.push_back({number, departed_error(route)});
        return number;
    }
    announce(route, tensor);
    unmatched_[route].push_back({number, std::move(tensor)});
    match(route);
    if (gone != shutdowns_.end()) fail_unmatched_with(route.peer);
    return number;
}

void Matcher::announce(const Route& route, const TensorDescription& tensor) {
    Writer out;
    out.enumerator(MessageType::announcement);
    out.number(route.tag);
    out.number(route.sending ? 1 : 0);
    out.enumerator(tensor.dtype);
    out.number(tensor.shape.size());
    for (const auto extent : tensor.shape) out.signed_number(extent);
    outbox_.push_back({route.peer, out.take()});
}

void Matcher::receive(int from, std::span<const std::byte> message) {
    Reader in(message);
    switch (in.enumerator<MessageType>()) {
        case MessageType::announcement: receive_announcement(from, in); break;
        case MessageType::shutdown: receive_shutdown(from, in); break;
    }
    in.expect_end();
}

void Matcher::receive_announcement(int from, Reader& in) {
    Route route{.peer = from};
    route.tag = static_cast<std::uint16_t>(in.number(std::numeric_limits<std::uint16_t>::max()));
    route.sending = in.number(1) == 0;  // the peer sends, so this rank receives
    TensorDescription tensor;
    tensor.dtype = in.enumerator<DType>();
    tensor.shape.resize(in.count(max_dimensions));
    for (auto& extent : tensor.shape) extent = in.signed_number();
    announcements_[route].push_back(std::move(tensor));
    match(route);
}

void Matcher::receive_shutdown(int from, Reader& in) {
    Shutdown shutdown;
    shutdown.at_once = in.number(1) == 1;
    shutdown.text = group_ranks_.shutdown_text(from, in.string(max_reason_bytes));
    shutdown.culprit = in.culprit();
    shutdowns_.insert_or_assign(from, std::move(shutdown));
    fail_unmatched_with(from);
}

void Matcher::shut_down(std::string_view reason, bool at_once, int culprit) {
    for (int rank = 0; rank < size_; ++rank) {
        const auto gone = shutdowns_.find(rank);
        if (gone != shutdowns_.end() && gone->second.at_once) continue;  // hears nothing any more
        Writer out;
        out.enumerator(MessageType::shutdown);
        out.number(at_once ? 1 : 0);
        out.string(reason.substr(0, max_reason_bytes));
        out.culprit(culprit);
        outbox_.push_back({rank, out.take()});
    }
}

void Matcher::fail_unmatched_with(int peer) {
    std::erase_if(unmatched_, [&](const auto& each) {
        const auto& [route, operations] = each;
        if (route.peer != peer) return false;
        for (const auto& operation : operations)
            decisions_.push_back({operation.number, departed_error(route)});
        return true;
    });
}

void Matcher::abandon() noexcept {
    unmatched_.clear();
    decisions_.clear();
}

void Matcher::match(const Route& route) {
    auto& operations = unmatched_[route];
    auto& announcements = announcements_[route];
    while (!operations.empty() && !announcements.empty()) {
        const auto& [number, mine] = operations.front();
        const auto& theirs = announcements.front();
        const bool alike = mine.dtype == theirs.dtype && mine.shape == theirs.shape;
        decisions_.push_back({number, alike ? nullptr : mismatch_error(route, mine, theirs)});
        operations.pop_front();
        announcements.pop_front();
    }
    if (operations.empty()) unmatched_.erase(route);
    if (announcements.empty()) announcements_.erase(route);
}

std::exception_ptr Matcher::departed_error(const Route& route) const {
    const auto& shutdown = shutdowns_.at(route.peer);
    return std::make_exception_ptr(
        Error(ErrorCode::departed,
              fmt::format("{}; {} with it (tag {}) was never matched", shutdown.text, verb(route),
                          route.tag),
              {.operation = verb(route),
               .ranks = ranks_led_by(shutdown.culprit, {group_ranks_.world_rank(route.peer)})}));
}

std::exception_ptr Matcher::mismatch_error(const Route& route, const TensorDescription& mine,
                                           const TensorDescription& theirs) const {
    const int own = group_ranks_.world_rank(rank_), peer = group_ranks_.world_rank(route.peer);
    const int sender = route.sending ? own : peer, receiver = route.sending ? peer : own;
    const auto text = fmt::format(
        "send/recv with tag {}: tensors differ: {} sent by rank {}; {} expected by rank {}",
        route.tag, print(route.sending ? mine : theirs), sender,
        print(route.sending ? theirs : mine), receiver);
    return std::make_exception_ptr(
        Error(ErrorCode::mismatch, text, {.operation = verb(route), .ranks = {sender, receiver}}));
}

}  // namespace guozhuang::protocol
