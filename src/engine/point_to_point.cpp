#include "engine/point_to_point.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <limits>

namespace guozhuang::engine {
namespace {

const char* verb(const Route& route) noexcept {
    return route.sending ? "send" : "recv";
}

}  // namespace

void PointToPoint::post(P2pOperation operation) {
    const auto& route = operation.route;
    const auto gone = shut_down_ranks_.find(route.peer);
    if (gone != shut_down_ranks_.end() && quit_ranks_.contains(route.peer))
        return outcomes_.push_back({operation.pending, departed_error(route, gone->second)});
    const auto& tensor = operation.pending->request().tensors->front();
    protocol::Writer out;
    out.enumerator(RecordType::announcement);
    out.number(route.tag);
    out.number(route.sending ? 1 : 0);
    out.enumerator(tensor.dtype);
    out.number(tensor.shape.size());
    for (const auto extent : tensor.shape) out.signed_number(extent);
    outbox_.push_back({route.peer, out.take()});
    const auto key = route;
    unmatched_[key].push_back(std::move(operation));
    match(key);
    if (gone != shut_down_ranks_.end()) fail_unmatched_with(gone->first, gone->second);
}

void PointToPoint::receive(int from, std::span<const std::byte> message) {
    protocol::Reader in(message);
    switch (in.enumerator<RecordType>()) {
        case RecordType::announcement: {
            Route route{.peer = from};
            route.tag =
                static_cast<std::uint16_t>(in.number(std::numeric_limits<std::uint16_t>::max()));
            route.sending = in.number(1) == 0;  // they send, so this rank receives
            protocol::TensorDescription tensor;
            tensor.dtype = in.enumerator<DType>();
            tensor.shape.resize(in.count(protocol::max_dimensions));
            for (auto& extent : tensor.shape) extent = in.signed_number();
            announcements_[route].push_back(std::move(tensor));
            match(route);
            break;
        }
        case RecordType::question: {
            protocol::Writer answer;
            answer.enumerator(RecordType::answer);
            outbox_.push_back({from, answer.take()});
            break;
        }
        case RecordType::answer:
            if (auto gone = awaiting_answer_.extract(from))
                shut_down_ranks_.insert(std::move(gone));
            else
                early_answers_.insert(from);
            if (shut_down_ranks_.contains(from))
                fail_unmatched_with(from, shut_down_ranks_.at(from));
            break;
    }
    in.expect_end();
}

void PointToPoint::answer_all() {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        protocol::Writer answer;
        answer.enumerator(RecordType::answer);
        outbox_.push_back({peer, answer.take()});
    }
}

void PointToPoint::shut_down(int rank, const std::string& text) {
    if (rank == rank_) return;
    if (early_answers_.contains(rank)) {
        shut_down_ranks_.emplace(rank, text);
        return fail_unmatched_with(rank, text);
    }
    awaiting_answer_.emplace(rank, text);
    protocol::Writer question;
    question.enumerator(RecordType::question);
    outbox_.push_back({rank, question.take()});
}

void PointToPoint::quit(int rank, const std::string& text) {
    quit_ranks_.insert(rank);
    shut_down(rank, text);
}

void PointToPoint::fail_unmatched(const std::string& text) {
    for (int peer = 0; peer < size_; ++peer) fail_unmatched_with(peer, text);
}

void PointToPoint::fail_unmatched_with(int peer, const std::string& text) {
    std::erase_if(unmatched_, [&](auto& each) {
        auto& [route, operations] = each;
        if (route.peer != peer) return false;
        for (auto& operation : operations)
            outcomes_.push_back({operation.pending, departed_error(route, text)});
        return true;
    });
}

bool PointToPoint::has_operations() const noexcept {
    return is_moving() || !unmatched_.empty();
}

bool PointToPoint::is_unmatched(const Pending& operation) const {
    return std::ranges::any_of(unmatched_, [&](const auto& each) {
        return std::ranges::any_of(each.second, [&](const P2pOperation& other) {
            return other.pending.get() == &operation;
        });
    });
}

void PointToPoint::abandon() noexcept {
    unmatched_.clear();
    moving_.clear();
    outcomes_.clear();
}

void PointToPoint::match(const Route& route) {
    auto& operations = unmatched_[route];
    auto& announcements = announcements_[route];
    while (!operations.empty() && !announcements.empty()) {
        auto operation = std::move(operations.front());
        const auto announcement = std::move(announcements.front());
        operations.pop_front();
        announcements.pop_front();
        begin(std::move(operation), announcement);
    }
    if (operations.empty()) unmatched_.erase(route);
    if (announcements.empty()) announcements_.erase(route);
}

void PointToPoint::begin(P2pOperation operation, const protocol::TensorDescription& theirs) {
    const auto& tensor = operation.pending->request().tensors->front();
    if (tensor.dtype != theirs.dtype || tensor.shape != theirs.shape)
        return outcomes_.push_back({operation.pending, mismatch(operation, theirs)});
    Mail::Ticket ticket = 0;
    if (tensor.bytes() > 0)
        ticket = operation.route.sending
                     ? mail_.send(operation.route.peer, operation.route.tag, tensor.memory())
                     : mail_.receive(operation.route.peer, operation.route.tag, tensor.memory());
    moving_.push_back({std::move(operation), ticket});
}

std::exception_ptr PointToPoint::departed_error(const Route& route, const std::string& text) const {
    return std::make_exception_ptr(Error(
        ErrorCode::departed,
        fmt::format("{}; {} with it (tag {}) was never matched", text, verb(route), route.tag),
        {.operation = verb(route), .ranks = {group_ranks_.world_rank(route.peer)}}));
}

std::exception_ptr PointToPoint::mismatch(const P2pOperation& operation,
                                          const protocol::TensorDescription& theirs) const {
    const auto& tensor = operation.pending->request().tensors->front();
    const auto& route = operation.route;
    const auto print = [](DType dtype, const Shape& shape) {
        return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
    };
    const auto mine = print(tensor.dtype, tensor.shape), other = print(theirs.dtype, theirs.shape);
    const int own = group_ranks_.world_rank(rank_), peer = group_ranks_.world_rank(route.peer);
    const int sender = route.sending ? own : peer, receiver = route.sending ? peer : own;
    const auto text = fmt::format(
        "send/recv with tag {}: tensors differ: {} sent by rank {}; {} expected by rank {}",
        route.tag, route.sending ? mine : other, sender, route.sending ? other : mine, receiver);
    return std::make_exception_ptr(
        Error(ErrorCode::mismatch, text, {.operation = verb(route), .ranks = {sender, receiver}}));
}

bool PointToPoint::advance() {
    // apart from the partition, which an exception would leave with operations lost
    for (auto& moving : moving_)
        if (moving.ticket != 0 && mail_.test(moving.ticket)) moving.ticket = 0;
    const auto arrived = std::stable_partition(
        moving_.begin(), moving_.end(), [](const Moving& moving) { return moving.ticket != 0; });
    const bool any = arrived != moving_.end();
    for (auto done = arrived; done != moving_.end(); ++done)
        outcomes_.push_back({done->operation.pending, nullptr});
    moving_.erase(arrived, moving_.end());
    return any;
}

}  // namespace guozhuang::engine
