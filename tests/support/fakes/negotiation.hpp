#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/negotiator.hpp"

namespace guozhuang::test {

/// A request for one tensor.
inline protocol::Description tensor(std::string name, Shape shape = {4},
                                    OperationKind operation = OperationKind::allreduce) {
    return {.operation = operation, .tensors = {{std::move(name), DType::f32, std::move(shape)}}};
}

/// The negotiators of a process set and the links between them, stepped by hand in one thread: the
/// test alone decides what happens, and in which order. A link delivers in order. Copyable, so that
/// a test can return to an earlier state.
class Negotiation {
public:
    using Link = std::pair<int, int>;  ///< from, to

    Negotiation(int size, const protocol::Negotiator::Options& options)
        : logs_(static_cast<std::size_t>(size)) {
        for (int rank = 0; rank < size; ++rank) negotiators_.emplace_back(rank, size, options);
    }

    int size() const { return static_cast<int>(negotiators_.size()); }
    protocol::Negotiator& at(int rank) { return negotiators_[static_cast<std::size_t>(rank)]; }

    void submit(int rank, const std::string& name, const protocol::Description& description,
                bool named = true, std::span<const std::byte> contribution = {}) {
        at(rank).submit(name, named, protocol::share(description), {}, contribution);
        collect(rank);
    }
    /// Under the name of its first tensor.
    void submit(int rank, const protocol::Description& description, bool named = true) {
        submit(rank, description.tensors.front().name, description, named);
    }
    void submit_everywhere(const protocol::Description& description, bool named = true) {
        for (int rank = 0; rank < size(); ++rank) submit(rank, description, named);
    }

    void shut_down(int rank, std::string_view reason = {}) {
        at(rank).shut_down(reason);
        collect(rank);
    }
    void join(int rank, const std::string& name = "join") {
        at(rank).join(name);
        collect(rank);
    }
    void quit(int rank, std::string_view reason = {}) {
        at(rank).quit(reason);
        collect(rank);
    }
    void shut_down_everywhere() {
        for (int rank = 0; rank < size(); ++rank) shut_down(rank);
    }

    /// Puts the rank's messages on the links, and its new entries into its log.
    void flush(int rank) {
        for (auto& message : at(rank).take_messages()) {
            ++messages_;
            bytes_ += message.bytes.size();
            links_[{rank, message.to}].push_back(std::move(message.bytes));
        }
        collect(rank);
    }

    /// The receiver gets the oldest message of the link.
    void deliver(Link link) {
        const auto found = links_.find(link);
        const auto message = std::move(found->second.front());
        found->second.pop_front();
        if (found->second.empty()) links_.erase(found);
        at(link.second).receive(link.first, message);
        collect(link.second);
    }

    /// The links that have messages, with them.
    std::map<Link, std::deque<protocol::Bytes>>& links() { return links_; }

    /// Flushes and delivers until no rank has a message left.
    void settle() {
        do {
            while (!links_.empty()) deliver(links_.begin()->first);
            for (int rank = 0; rank < size(); ++rank) flush(rank);
        } while (!links_.empty());
    }

    /// All entries that the rank has learnt so far.
    const std::vector<protocol::LogEntry>& log(int rank) const {
        return logs_[static_cast<std::size_t>(rank)];
    }
    std::size_t messages_sent() const { return messages_; }
    std::size_t bytes_sent() const { return bytes_; }

private:
    void collect(int rank) {
        auto& log = logs_[static_cast<std::size_t>(rank)];
        at(rank).take_entries(entries_);
        for (auto& entry : entries_) log.push_back(std::move(entry));
    }

    std::vector<protocol::Negotiator> negotiators_;
    std::map<Link, std::deque<protocol::Bytes>> links_;
    std::vector<std::vector<protocol::LogEntry>> logs_;
    std::vector<protocol::LogEntry> entries_;  ///< just taken
    std::size_t messages_ = 0, bytes_ = 0;
};

}  // namespace guozhuang::test
