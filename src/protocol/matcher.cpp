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
    const auto gone = shut_down_ranks_.find(route.peer);
    if (gone != shut_down_ranks_.end() && quit_ranks_.contains(route.peer)) {
        decisions_.push_back({number, departed_error(route, gone->second)});
        return number;
    }
    announce(route, tensor);
    unmatched_[route].push_back({number, std::move(tensor)});
    match(route);
    if (gone != shut_down_ranks_.end()) fail_unmatched_with(gone->first, gone->second);
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

void Matcher::send(int to, MessageType type) {
    Writer out;
    out.enumerator(type);
    outbox_.push_back({to, out.take()});
}

void Matcher::receive(int from, std::span<const std::byte> message) {
    Reader in(message);
    switch (in.enumerator<MessageType>()) {
        case MessageType::announcement: receive_announcement(from, in); break;
        case MessageType::question: send(from, MessageType::answer); break;
        case MessageType::answer: receive_answer(from); break;
    }
    in.expect_end();
}

void Matcher::receive_announcement(int from, Reader& in) {
    Route route{.peer = from};
    route.tag = static_cast<std::uint16_t>(in.number(std::numeric_limits<std::uint16_t>::max()));
    route.sending = in.number(1) == 0;  // they send, so this rank receives
    TensorDescription tensor;
    tensor.dtype = in.enumerator<DType>();
    tensor.shape.resize(in.count(max_dimensions));
    for (auto& extent : tensor.shape) extent = in.signed_number();
    announcements_[route].push_back(std::move(tensor));
    match(route);
}

void Matcher::receive_answer(int from) {
    if (auto gone = awaiting_answer_.extract(from))
        shut_down_ranks_.insert(std::move(gone));
    else
        early_answers_.insert(from);
    if (shut_down_ranks_.contains(from)) fail_unmatched_with(from, shut_down_ranks_.at(from));
}

void Matcher::answer_all() {
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) send(peer, MessageType::answer);
}

void Matcher::shut_down(int rank, const std::string& text) {
    if (rank == rank_) return;
    if (early_answers_.contains(rank)) {
        shut_down_ranks_.emplace(rank, text);
        return fail_unmatched_with(rank, text);
    }
    awaiting_answer_.emplace(rank, text);
    send(rank, MessageType::question);
}

void Matcher::quit(int rank, const std::string& text) {
    quit_ranks_.insert(rank);
    shut_down(rank, text);
}

void Matcher::fail_unmatched(const std::string& text) {
    for (int peer = 0; peer < size_; ++peer) {
        const auto asked = awaiting_answer_.find(peer);
        fail_unmatched_with(peer, asked == awaiting_answer_.end() ? text : asked->second);
    }
}

void Matcher::fail_unmatched_with(int peer, const std::string& text) {
    std::erase_if(unmatched_, [&](const auto& each) {
        const auto& [route, operations] = each;
        if (route.peer != peer) return false;
        for (const auto& operation : operations)
            decisions_.push_back({operation.number, departed_error(route, text)});
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

std::exception_ptr Matcher::departed_error(const Route& route, const std::string& text) const {
    return std::make_exception_ptr(Error(
        ErrorCode::departed,
        fmt::format("{}; {} with it (tag {}) was never matched", text, verb(route), route.tag),
        {.operation = verb(route), .ranks = {group_ranks_.world_rank(route.peer)}}));
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
