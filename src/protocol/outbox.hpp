#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "protocol/codec.hpp"

namespace guozhuang::protocol {

/// A message to another rank.
struct Outgoing {
    int to = 0;
    Bytes bytes;
};

/// What a negotiator has to say to other ranks, until it is sent: records, put together into one
/// message per receiver, and into several if one would be long.
class Outbox {
public:
    /// Beyond this size the next record begins another message.
    static constexpr std::size_t full_message_bytes = 1u << 20;

    /// Where the next record for the rank is to be written. A message begins with the position in
    /// the log that the sender had reached by then.
    Writer& message_to(int rank, std::uint64_t position) {
        auto& out = open_[rank];
        if (out.size() > full_message_bytes) full_.push_back({rank, out.take()});
        if (out.empty()) out.number(position);
        return out;
    }

    /// All messages, in the order in which each receiver must get them.
    std::vector<Outgoing> take() {
        auto messages = std::exchange(full_, {});
        for (auto& [to, out] : open_) messages.push_back({to, out.take()});
        open_.clear();
        return messages;
    }

private:
    std::vector<Outgoing> full_;  ///< take no more records
    std::map<int, Writer> open_;  ///< behind them
};

}  // namespace guozhuang::protocol
