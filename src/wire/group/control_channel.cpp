#include "wire/group/control_channel.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <string_view>
#include <xxhash.h>

#include "base/failpoint.hpp"
#include "base/keep_for_ever.hpp"
#include "base/log.hpp"

namespace guozhuang::wire {
namespace {

constexpr std::size_t largest_message = std::size_t{64} << 20;

/// Before every message, in the hosts' byte order. They must have the same, since tensors are sent
/// as they lie in memory.
struct Envelope {
    static constexpr std::uint32_t expected_magic = 0x4A5A5547;  // "GUZJ"
    static constexpr std::uint16_t expected_version = 3;

    std::uint32_t magic = expected_magic;
    std::uint16_t version = expected_version;
    std::uint16_t context = 0;
    std::uint64_t epoch = 0;
    std::uint64_t bytes = 0;     ///< of the message after it
    std::uint64_t checksum = 0;  ///< XXH3 of these bytes, seeded with the epoch
};
static_assert(largest_message + sizeof(Envelope) <= max_control_bytes);

[[noreturn]] void refuse(int sender, std::string_view why) {
    throw Error(ErrorCode::wire, fmt::format("rank {} sent a control message that {}", sender, why),
                {.ranks = {sender}});
}

/// Checks and removes the envelope of a message, copies it to `envelope`, and returns the rest.
std::vector<std::byte> unwrap(std::vector<std::byte> message, int sender, Envelope& envelope) {
    if (message.size() < sizeof envelope) refuse(sender, "is too short");
    std::memcpy(&envelope, message.data(), sizeof envelope);
    message.erase(message.begin(), message.begin() + sizeof envelope);
    if (envelope.magic != Envelope::expected_magic) refuse(sender, "is not one of this library");
    if (envelope.version != Envelope::expected_version) {
        refuse(
            sender,
            fmt::format(
                "has version {} of the format; this rank has {}: run the same build on all ranks",
                envelope.version, Envelope::expected_version));
    }
    if (envelope.bytes != message.size())
        refuse(sender, fmt::format("says {} bytes and has {}", envelope.bytes, message.size()));
    if (envelope.checksum != XXH3_64bits_withSeed(message.data(), message.size(), envelope.epoch))
        refuse(sender, "is corrupt (its checksum is wrong)");
    return message;
}

}  // namespace

ControlChannel::ControlChannel(Messages& messages, engine::SetId id, std::vector<int> ranks)
    : messages_(messages),
      id_(id),
      tag_{id.context, Lane::control, 0},
      ranks_(std::move(ranks)),
      group_rank_(group_rank_of(messages.rank())) {}

ControlChannel::~ControlChannel() {
    if (outgoing_.empty()) return;
    base::log(LogLevel::info,
              "{} control messages were still being sent: their memory is left to the transport",
              outgoing_.size());
    // The transport may still read this memory, so it must not be freed.
    base::keep_for_ever(std::move(outgoing_));
}

int ControlChannel::group_rank_of(int world_rank) const {
    const auto found = std::ranges::lower_bound(ranks_, world_rank);
    if (found == ranks_.end() || *found != world_rank) {
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} takes part in process set {}, to which it does not belong",
                                world_rank, tag_.context),
                    {.ranks = {world_rank}});
    }
    return static_cast<int>(found - ranks_.begin());
}

void ControlChannel::send(int to, std::vector<std::byte> message) {
    if (message.size() > largest_message) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("a control message of {} bytes; at most {}", message.size(),
                                largest_message));
    }
    base::pass(base::Failpoint::control_send);
    const Envelope envelope{
        .context = id_.context,
        .epoch = id_.epoch,
        .bytes = message.size(),
        .checksum = XXH3_64bits_withSeed(message.data(), message.size(), id_.epoch)};
    const auto* raw = reinterpret_cast<const std::byte*>(&envelope);
    message.insert(message.begin(), raw, raw + sizeof envelope);
    // First of all it has an owner. Moving the vector leaves its bytes where they are.
    auto& outgoing = outgoing_.emplace_back(Outgoing{{}, std::move(message)});
    outgoing.ticket = messages_.send(ranks_.at(static_cast<std::size_t>(to)), tag_, outgoing.bytes);
    base::pass(base::Failpoint::control_sent);
    retire();
}

void ControlChannel::retire() {
    std::erase_if(outgoing_, [&](Outgoing& outgoing) { return messages_.test(outgoing.ticket); });
}

std::optional<engine::Control::Message> ControlChannel::poll() {
    retire();
    while (auto arrived = messages_.poll(tag_)) {
        base::pass(base::Failpoint::control_arrived);
        Envelope envelope;
        auto bytes = unwrap(std::move(arrived->bytes), arrived->from, envelope);
        base::pass(base::Failpoint::control_received);
        if (envelope.context != id_.context) refuse(arrived->from, "is of another process set");
        if (envelope.epoch > id_.epoch)
            refuse(arrived->from, "comes from a process set that does not exist yet");
        if (envelope.epoch == id_.epoch)
            return Message{group_rank_of(arrived->from), std::move(bytes)};
    }
    return std::nullopt;
}

bool ControlChannel::flushed() {
    retire();
    return outgoing_.empty() && messages_.flushed();
}

}  // namespace guozhuang::wire
