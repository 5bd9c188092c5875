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

void PointToPoint::post(Letter letter) {
    const auto& route = letter.route;
    const auto gone = departed_.find(route.peer);
    if (gone != departed_.end() && left_.contains(route.peer))
        return outcomes_.push_back({letter.pending, departed_error(route, gone->second)});
    const auto& tensor = letter.pending->request().tensors->front();
    protocol::Writer out;
    out.enumerator(Part::notice);
    out.number(route.tag);
    out.number(route.sending ? 1 : 0);
    out.enumerator(tensor.dtype);
    out.number(tensor.shape.size());
    for (const auto extent : tensor.shape) out.signed_number(extent);
    outbox_.push_back({route.peer, out.take()});
    const auto key = route;
    letters_[key].push_back(std::move(letter));
    match(key);
    if (gone != departed_.end()) fail_unmatched_with(gone->first, gone->second);
}

void PointToPoint::receive(int from, std::span<const std::byte> message) {
    protocol::Reader in(message);
    switch (in.enumerator(Part::answer)) {
        case Part::notice: {
            Route route{.peer = from};
            route.tag =
                static_cast<std::uint16_t>(in.number(std::numeric_limits<std::uint16_t>::max()));
            route.sending = in.number(1) == 0;  // they send, so this rank receives
            protocol::TensorDescription tensor;
            tensor.dtype = in.enumerator(DType::u64);
            tensor.shape.resize(in.count(protocol::max_dimensions));
            for (auto& extent : tensor.shape) extent = in.signed_number();
            notices_[route].push_back(std::move(tensor));
            match(route);
            break;
        }
        case Part::question: {
            protocol::Writer answer;
            answer.enumerator(Part::answer);
            outbox_.push_back({from, answer.take()});
            break;
        }
        case Part::answer:
            if (auto gone = departing_.extract(from))
                departed_.insert(std::move(gone));
            else
                goodbyes_.insert(from);
            if (departed_.contains(from)) fail_unmatched_with(from, departed_.at(from));
            break;
    }
    in.expect_end();
}

void PointToPoint::say_goodbye() {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        protocol::Writer answer;
        answer.enumerator(Part::answer);
        outbox_.push_back({peer, answer.take()});
    }
}

void PointToPoint::depart(int rank, const std::string& text) {
    if (rank == rank_) return;
    if (goodbyes_.contains(rank)) {
        departed_.emplace(rank, text);
        return fail_unmatched_with(rank, text);
    }
    departing_.emplace(rank, text);
    protocol::Writer question;
    question.enumerator(Part::question);
    outbox_.push_back({rank, question.take()});
}

void PointToPoint::leave(int rank, const std::string& text) {
    left_.insert(rank);
    depart(rank, text);
}

void PointToPoint::fail_unmatched(const std::string& text) {
    for (int peer = 0; peer < size_; ++peer) fail_unmatched_with(peer, text);
}

void PointToPoint::fail_unmatched_with(int peer, const std::string& text) {
    std::erase_if(letters_, [&](auto& each) {
        auto& [route, letters] = each;
        if (route.peer != peer) return false;
        for (auto& letter : letters)
            outcomes_.push_back({letter.pending, departed_error(route, text)});
        return true;
    });
}

bool PointToPoint::has_letters() const noexcept {
    return is_moving() || !letters_.empty();
}

bool PointToPoint::is_unmatched(const Pending& letter) const {
    return std::ranges::any_of(letters_, [&](const auto& each) {
        return std::ranges::any_of(
            each.second, [&](const Letter& other) { return other.pending.get() == &letter; });
    });
}

void PointToPoint::abandon() noexcept {
    letters_.clear();
    moving_.clear();
    outcomes_.clear();
}

void PointToPoint::match(const Route& route) {
    auto& letters = letters_[route];
    auto& notices = notices_[route];
    while (!letters.empty() && !notices.empty()) {
        auto letter = std::move(letters.front());
        const auto notice = std::move(notices.front());
        letters.pop_front();
        notices.pop_front();
        begin(std::move(letter), notice);
    }
    if (letters.empty()) letters_.erase(route);
    if (notices.empty()) notices_.erase(route);
}

void PointToPoint::begin(Letter letter, const protocol::TensorDescription& theirs) {
    const auto& tensor = letter.pending->request().tensors->front();
    if (tensor.dtype != theirs.dtype || tensor.shape != theirs.shape)
        return outcomes_.push_back({letter.pending, mismatch(letter, theirs)});
    Mail::Ticket ticket = 0;
    if (tensor.bytes() > 0)
        ticket = letter.route.sending
                     ? mail_.send(letter.route.peer, letter.route.tag, tensor.memory())
                     : mail_.receive(letter.route.peer, letter.route.tag, tensor.memory());
    moving_.push_back({std::move(letter), ticket});
}

std::exception_ptr PointToPoint::departed_error(const Route& route, const std::string& text) const {
    return std::make_exception_ptr(Error(
        ErrorCode::departed,
        fmt::format("{}; {} with it (tag {}) was never matched", text, verb(route), route.tag),
        {.operation = verb(route), .ranks = {members_.world_rank(route.peer)}}));
}

std::exception_ptr PointToPoint::mismatch(const Letter& letter,
                                          const protocol::TensorDescription& theirs) const {
    const auto& tensor = letter.pending->request().tensors->front();
    const auto& route = letter.route;
    const auto print = [](DType dtype, const Shape& shape) {
        return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
    };
    const auto mine = print(tensor.dtype, tensor.shape), other = print(theirs.dtype, theirs.shape);
    const int own = members_.world_rank(rank_), peer = members_.world_rank(route.peer);
    const int sender = route.sending ? own : peer, receiver = route.sending ? peer : own;
    const auto text = fmt::format(
        "send/recv with tag {}: tensors differ: {} sent by rank {}; {} expected by rank {}",
        route.tag, route.sending ? mine : other, sender, route.sending ? other : mine, receiver);
    return std::make_exception_ptr(
        Error(ErrorCode::mismatch, text, {.operation = verb(route), .ranks = {sender, receiver}}));
}

bool PointToPoint::advance() {
    // apart from the partition, which an exception would leave with letters lost
    for (auto& moving : moving_)
        if (moving.ticket != 0 && mail_.test(moving.ticket)) moving.ticket = 0;
    const auto arrived = std::stable_partition(
        moving_.begin(), moving_.end(), [](const Moving& moving) { return moving.ticket != 0; });
    const bool any = arrived != moving_.end();
    for (auto done = arrived; done != moving_.end(); ++done)
        outcomes_.push_back({done->letter.pending, nullptr});
    moving_.erase(arrived, moving_.end());
    return any;
}

}  // namespace guozhuang::engine
