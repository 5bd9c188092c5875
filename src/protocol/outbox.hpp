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
    Bytes bytes = {};
};

/// Records that wait to be sent to other ranks, packed into one message per receiver, or several if
/// one would be long. A record is added whole or not at all, so a rank that runs out of memory
/// sends no malformed message.
class Outbox {
public:
    /// After this size the next record starts another message.
    static constexpr std::size_t full_message_bytes = 1u << 20;

    /// Adds the record that write(Writer&) writes, for the rank. A message begins with the position
    /// in the log that the sender had reached by then.
    template <class Write>
    void add(int rank, std::uint64_t position, const Write& write) {
        auto& out = open_[rank];
        if (out.size() > full_message_bytes) {
            full_.push_back({.to = rank});
            full_.back().bytes = out.take();
        }
        const auto size = out.size();
        try {
            if (out.empty()) out.number(position);
            write(out);
        } catch (...) {
            out.cut(size);
            throw;
        }
    }

    /// Takes all messages, in the order in which each receiver must get them.
    std::vector<Outgoing> take() {
        auto messages = std::exchange(full_, {});
        for (auto& [to, out] : open_)
            if (!out.empty()) messages.push_back({to, out.take()});
        open_.clear();
        return messages;
    }

private:
    std::vector<Outgoing> full_;  ///< take no more records
    std::map<int, Writer> open_;  ///< behind them
};

}  // namespace guozhuang::protocol
