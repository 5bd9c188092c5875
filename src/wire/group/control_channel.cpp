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

/// In front of every message, in the byte order of the hosts (which must be alike anyway: tensors
/// are sent as they lie in memory).
struct Header {
    static constexpr std::uint32_t expected_magic = 0x4A5A5547;  // "GUZJ"
    static constexpr std::uint32_t expected_version = 1;

    std::uint32_t magic = expected_magic;
    std::uint32_t version = expected_version;
    std::uint64_t life = 0;      ///< of the context id
    std::uint64_t bytes = 0;     ///< of the message behind it
    std::uint64_t checksum = 0;  ///< XXH3 of these bytes, seeded with the life
};
static_assert(largest_message + sizeof(Header) <= max_control_bytes);

[[noreturn]] void refuse(int sender, std::string_view why) {
    throw Error(ErrorCode::wire, fmt::format("rank {} sent a control message that {}", sender, why),
                {.ranks = {sender}});
}

/// Takes the header off a message from `sender` and returns the rest; `header` receives it.
std::vector<std::byte> unwrap(std::vector<std::byte> message, int sender, Header& header) {
    if (message.size() < sizeof header) refuse(sender, "is too short");
    std::memcpy(&header, message.data(), sizeof header);
    message.erase(message.begin(), message.begin() + sizeof header);
    if (header.magic != Header::expected_magic) refuse(sender, "is not one of this library");
    if (header.version != Header::expected_version) {
        refuse(
            sender,
            fmt::format(
                "has version {} of the format; this rank has {}: run the same build on all ranks",
                header.version, Header::expected_version));
    }
    if (header.bytes != message.size())
        refuse(sender, fmt::format("says {} bytes and has {}", header.bytes, message.size()));
    if (header.checksum != XXH3_64bits_withSeed(message.data(), message.size(), header.life))
        refuse(sender, "is corrupt (its checksum is wrong)");
    return message;
}

}  // namespace

ControlChannel::ControlChannel(Transport& transport, std::uint16_t context,
                               std::vector<int> members, std::uint64_t life)
    : transport_(transport),
      tag_{context, Lane::control, 0},
      life_(life),
      members_(std::move(members)),
      position_(position_of(transport.rank())) {}

ControlChannel::~ControlChannel() {
    if (outgoing_.empty()) return;
    base::log_info(fmt::format(
        "{} control messages were still being sent: their memory is left to the transport",
        outgoing_.size()));
    // The transport may still read this memory, so it must not be freed.
    base::keep_for_ever(std::move(outgoing_));
}

int ControlChannel::position_of(int world_rank) const {
    const auto found = std::find(members_.begin(), members_.end(), world_rank);
    if (found == members_.end()) {
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} takes part in process set {}, of which it is no member",
                                world_rank, tag_.context),
                    {.ranks = {world_rank}});
    }
    return static_cast<int>(found - members_.begin());
}

void ControlChannel::send(int to, std::vector<std::byte> message) {
    if (message.size() > largest_message) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("a control message of {} bytes; at most {}", message.size(),
                                largest_message));
    }
    base::pass(base::Failpoint::control_send);
    Header header;
    header.life = life_;
    header.bytes = message.size();
    header.checksum = XXH3_64bits_withSeed(message.data(), message.size(), life_);
    const auto* raw = reinterpret_cast<const std::byte*>(&header);
    message.insert(message.begin(), raw, raw + sizeof header);
    Outgoing outgoing{{}, std::move(message)};
    // A vector that moves keeps its bytes in place.
    outgoing.ticket =
        transport_.send(members_.at(static_cast<std::size_t>(to)), tag_, outgoing.bytes);
    outgoing_.push_back(std::move(outgoing));
    base::pass(base::Failpoint::control_sent);
    retire();
}

void ControlChannel::retire() {
    std::erase_if(outgoing_, [&](Outgoing& outgoing) { return transport_.test(outgoing.ticket); });
}

std::optional<engine::Control::Message> ControlChannel::poll() {
    retire();
    while (auto arrived = transport_.poll(tag_)) {
        base::pass(base::Failpoint::control_arrived);
        Header header;
        auto bytes = unwrap(std::move(arrived->bytes), arrived->from, header);
        base::pass(base::Failpoint::control_received);
        if (header.life > life_)
            refuse(arrived->from, "comes from a process set that does not exist yet");
        if (header.life == life_) return Message{position_of(arrived->from), std::move(bytes)};
    }
    return std::nullopt;
}

bool ControlChannel::flushed() {
    retire();
    return outgoing_.empty() && transport_.flushed();
}

}  // namespace guozhuang::wire
