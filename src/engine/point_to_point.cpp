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

/// How a message about a letter begins.
template <class Part>
Writer about(Part part, const Route& route, std::uint64_t number) {
    Writer out;
    out.enumerator(part);
    out.number(route.tag);
    out.number(route.sending ? 1 : 0);
    out.number(number);
    return out;
}

}  // namespace

void PointToPoint::post(Letter letter) {
    const auto& route = letter.route;
    const auto gone = departed_.find(route.peer);
    if (gone != departed_.end() && left_.contains(route.peer))
        return outcomes_.push_back({letter.pending, departed_error(route, gone->second)});
    const auto& tensor = letter.pending->request().tensors->front();
    letter.number = posted_++;
    auto out = about(Part::notice, route, letter.number);
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
    Reader in(message);
    const auto part = in.enumerator(Part::given_up);
    Route route{.peer = from};
    std::uint64_t number = 0;
    if (part != Part::question && part != Part::answer) {
        route.tag = static_cast<std::uint16_t>(in.number(std::numeric_limits<std::uint16_t>::max()));
        route.sending = in.number(1) == 0;  // they send, so this rank receives
        number = in.number();
    }
    switch (part) {
        case Part::notice: {
            Notice notice{.number = number, .tensor = {}};
            notice.tensor.dtype = in.enumerator(DType::u64);
            notice.tensor.shape.resize(in.count(max_dimensions));
            for (auto& extent : notice.tensor.shape) extent = in.signed_number();
            notices_[route].push_back(std::move(notice));
            match(route);
            break;
        }
        case Part::give_up: agree_to_give_up(route, number, in.string()); break;
        case Part::given_up: end_given_up(route, number, in.string()); break;
        case Part::question: {
            Writer answer;
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
        Writer answer;
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
    Writer question;
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
            if (letter.pending) outcomes_.push_back({letter.pending, departed_error(route, text)});
        return true;
    });
}

void PointToPoint::give_up(const Pending& pending, std::string_view text) {
    for (const auto& [route, letters] : letters_) {
        const auto letter = std::ranges::find(letters, &pending, [](const Letter& each) { return each.pending.get(); });
        if (letter == letters.end()) continue;
        auto out = about(Part::give_up, route, letter->number);
        out.string(text.substr(0, max_name_bytes));
        return outbox_.push_back({.to = route.peer, .bytes = out.take(), .urgent = true});
    }
}

/// If the notice is there no more, this rank's own letter has met it, and has been announced.
void PointToPoint::agree_to_give_up(const Route& route, std::uint64_t number, const std::string& text) {
    const auto found = notices_.find(route);
    if (found == notices_.end()) return;
    const auto notice = std::ranges::find(found->second, number, &Notice::number);
    if (notice == found->second.end()) return;
    notice->given_up = text;
    auto out = about(Part::given_up, route, number);
    out.string(text);
    outbox_.push_back({route.peer, out.take()});
}

void PointToPoint::end_given_up(const Route& route, std::uint64_t number, const std::string& text) {
    const auto found = letters_.find(route);
    if (found == letters_.end()) return;
    const auto letter = std::ranges::find(found->second, number, &Letter::number);
    if (letter == found->second.end() || !letter->pending) return;
    outcomes_.push_back({std::exchange(letter->pending, nullptr), timeout_error(route, route.peer, text)});
}

bool PointToPoint::has_letters() const noexcept {
    const auto waits = [](const auto& each) {
        return std::ranges::any_of(each.second, [](const Letter& letter) { return letter.pending != nullptr; });
    };
    return is_moving() || std::ranges::any_of(letters_, waits);
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
        if (letter.pending) begin(std::move(letter), notice);
    }
    if (letters.empty()) letters_.erase(route);
    if (notices.empty()) notices_.erase(route);
}

void PointToPoint::begin(Letter letter, const Notice& theirs) {
    if (theirs.given_up) return outcomes_.push_back({letter.pending, timeout_error(letter.route, rank_, *theirs.given_up)});
    const auto& tensor = letter.pending->request().tensors->front();
    if (tensor.dtype != theirs.tensor.dtype || tensor.shape != theirs.tensor.shape)
        return outcomes_.push_back({letter.pending, mismatch(letter, theirs.tensor)});
    Mail::Ticket ticket = 0;
    if (tensor.bytes() > 0)
        ticket = letter.route.sending ? mail_.send(letter.route.peer, letter.route.tag, tensor.memory())
                                      : mail_.receive(letter.route.peer, letter.route.tag, tensor.memory());
    moving_.push_back({std::move(letter), ticket});
}

std::exception_ptr PointToPoint::departed_error(const Route& route, const std::string& text) const {
    return std::make_exception_ptr(Error(ErrorCode::departed,
                                         fmt::format("{}; {} with it (tag {}) was never matched", text, verb(route), route.tag),
                                         {.tensor = {}, .operation = verb(route), .ranks = {members_.world_rank(route.peer)}}));
}

std::exception_ptr PointToPoint::timeout_error(const Route& route, int missing, const std::string& text) const {
    return std::make_exception_ptr(
        Error(ErrorCode::timeout, text, {.tensor = {}, .operation = verb(route), .ranks = {members_.world_rank(missing)}}));
}

std::exception_ptr PointToPoint::mismatch(const Letter& letter, const TensorDescription& theirs) const {
    const auto& tensor = letter.pending->request().tensors->front();
    const auto& route = letter.route;
    const auto print = [](DType dtype, const Shape& shape) { return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", ")); };
    const auto mine = print(tensor.dtype, tensor.shape), other = print(theirs.dtype, theirs.shape);
    const int own = members_.world_rank(rank_), peer = members_.world_rank(route.peer);
    const int sender = route.sending ? own : peer, receiver = route.sending ? peer : own;
    const auto text = fmt::format("send/recv with tag {}: tensors differ: {} sent by rank {}; {} expected by rank {}", route.tag,
                                  route.sending ? mine : other, sender, route.sending ? other : mine, receiver);
    return std::make_exception_ptr(Error(ErrorCode::mismatch, text, {.tensor = {}, .operation = verb(route), .ranks = {sender, receiver}}));
}

bool PointToPoint::advance() {
    for (auto& moving : moving_)  // apart from the partition, which an exception would leave with letters lost
        if (moving.ticket != 0 && mail_.test(moving.ticket)) moving.ticket = 0;
    const auto arrived = std::stable_partition(moving_.begin(), moving_.end(), [](const Moving& moving) { return moving.ticket != 0; });
    const bool any = arrived != moving_.end();
    for (auto done = arrived; done != moving_.end(); ++done) outcomes_.push_back({done->letter.pending, nullptr});
    moving_.erase(arrived, moving_.end());
    return any;
}

}  // namespace guozhuang::engine
