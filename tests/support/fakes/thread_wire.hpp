#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace guozhuang::test {

/// A Switchboard carries the messages between the ThreadWires of a group of threads. It is as
/// unhelpful as the concept Wire allows: it buffers nothing, moves bytes only when the receiver
/// waits, fills the receive memory with garbage until then, and catches a sender that changes its
/// memory too early. It takes a wait of half a minute for a deadlock and throws.
class Switchboard {
public:
    struct Message {
        std::span<const std::byte> bytes;
        std::size_t hash = 0;
        bool delivered = false;
    };

    explicit Switchboard(int size)
        : lanes_(static_cast<std::size_t>(size * size)),
          news_(static_cast<std::size_t>(size)),
          size_(size) {}

    int size() const { return size_; }

    std::size_t post_send(int from, int to, std::span<const std::byte> bytes) {
        const std::lock_guard lock(mutex_);
        auto& lane = lane_of(from, to);
        lane.sent.push_back({bytes, hash_of(bytes), false});
        news_of(to).notify_one();
        return lane.sent.size() - 1;
    }

    std::size_t post_receive(int from, int to, std::span<std::byte> room) {
        std::memset(room.data(), 0xEE, room.size());
        const std::lock_guard lock(mutex_);
        return lane_of(from, to).receives++;
    }

    bool try_deliver(int from, int to, std::size_t index, std::span<std::byte> room) {
        const std::lock_guard lock(mutex_);
        if (lane_of(from, to).sent.size() <= index) return false;
        deliver(from, to, index, room);
        return true;
    }

    void await_delivery(int from, int to, std::size_t index, std::span<std::byte> room) {
        std::unique_lock lock(mutex_);
        await(lock, to, [&] { return lane_of(from, to).sent.size() > index; });
        deliver(from, to, index, room);
    }

    bool delivered(int from, int to, std::size_t index) {
        const std::lock_guard lock(mutex_);
        return lane_of(from, to).sent[index].delivered;
    }

    void await_delivered(int from, int to, std::size_t index) {
        std::unique_lock lock(mutex_);
        await(lock, from, [&] { return lane_of(from, to).sent[index].delivered; });
    }

    /// One rank has failed: nobody waits any longer.
    void fail() {
        const std::lock_guard lock(mutex_);
        failed_ = true;
        for (auto& news : news_) news.notify_all();
    }

    /// Counts messages that were not received and receives without a message. 0 after a proper run.
    std::size_t unmatched() {
        const std::lock_guard lock(mutex_);
        std::size_t count = 0;
        for (const auto& lane : lanes_) {
            if (lane.sent.size() != lane.receives) ++count;
            for (const auto& message : lane.sent) count += message.delivered ? 0 : 1;
        }
        return count;
    }

private:
    struct Lane {
        std::deque<Message> sent;
        std::size_t receives = 0;
    };

    static std::size_t hash_of(std::span<const std::byte> bytes) {
        return std::hash<std::string_view>{}(
            {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }

    Lane& lane_of(int from, int to) { return lanes_[static_cast<std::size_t>(from * size_ + to)]; }
    std::condition_variable& news_of(int rank) { return news_[static_cast<std::size_t>(rank)]; }

    template <class Ready>
    void await(std::unique_lock<std::mutex>& lock, int rank, const Ready& ready) {
        const bool in_time = news_of(rank).wait_for(lock, std::chrono::seconds(30),
                                                    [&] { return failed_ || ready(); });
        if (failed_) throw std::runtime_error("another rank failed");
        if (!in_time)
            throw std::runtime_error("deadlock: rank " + std::to_string(rank) +
                                     " waits for a message that never comes");
    }

    void deliver(int from, int to, std::size_t index, std::span<std::byte> room) {
        auto& message = lane_of(from, to).sent[index];
        const auto lane = std::to_string(from) + " -> " + std::to_string(to);
        if (message.bytes.size() != room.size())
            throw std::runtime_error("lengths differ, " + lane);
        if (message.bytes.empty()) throw std::runtime_error("empty message, " + lane);
        if (message.hash != hash_of(message.bytes))
            throw std::runtime_error("sent memory changed before its time, " + lane);
        std::memcpy(room.data(), message.bytes.data(), room.size());
        message.delivered = true;
        news_of(from).notify_one();
    }

    std::mutex mutex_;
    std::vector<Lane> lanes_;
    std::deque<std::condition_variable> news_;
    int size_;
    bool failed_ = false;
};

/// A Wire between threads; counts what its rank sends.
class ThreadWire {
public:
    struct Ticket {
        enum class Kind { none, sent, received } kind = Kind::none;
        int peer = 0;
        std::size_t index = 0;
        std::span<std::byte> room = {};
    };

    ThreadWire(Switchboard& board, int rank) : board_(&board), rank_(rank) {}

    int rank() const { return rank_; }
    int size() const { return board_->size(); }
    std::size_t window_bytes() const { return window_bytes_; }
    void set_window_bytes(std::size_t bytes) { window_bytes_ = bytes; }

    Ticket send(std::span<const std::byte> bytes, int peer) {
        ++messages_;
        bytes_ += bytes.size();
        return {Ticket::Kind::sent, peer, board_->post_send(rank_, peer, bytes), {}};
    }
    Ticket receive(std::span<std::byte> room, int peer) {
        return {Ticket::Kind::received, peer, board_->post_receive(peer, rank_, room), room};
    }
    void wait(Ticket& ticket) {
        if (ticket.kind == Ticket::Kind::sent)
            board_->await_delivered(rank_, ticket.peer, ticket.index);
        if (ticket.kind == Ticket::Kind::received)
            board_->await_delivery(ticket.peer, rank_, ticket.index, ticket.room);
        ticket = {};
    }
    bool done(Ticket& ticket) {
        if (ticket.kind == Ticket::Kind::sent &&
            !board_->delivered(rank_, ticket.peer, ticket.index))
            return false;
        if (ticket.kind == Ticket::Kind::received &&
            !board_->try_deliver(ticket.peer, rank_, ticket.index, ticket.room))
            return false;
        ticket = {};
        return true;
    }

    std::size_t messages() const { return messages_; }
    std::size_t bytes() const { return bytes_; }

private:
    Switchboard* board_;
    int rank_;
    std::size_t window_bytes_ = 0;
    std::size_t messages_ = 0;
    std::size_t bytes_ = 0;
};

/// Runs body(rank) on a thread per rank. An exception on one thread ends all; the first is thrown
/// here. Only the caller's thread may use Catch2 macros.
template <class Body>
void run_ranks(Switchboard& board, const Body& body) {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::exception_ptr first;
    for (int rank = 0; rank < board.size(); ++rank) {
        threads.emplace_back([&, rank] {
            try {
                body(rank);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!first) first = std::current_exception();
                board.fail();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
    if (board.unmatched() != 0) throw std::runtime_error("messages left over");
}

/// Runs body(wire) on a thread per rank; returns the wires, for their counts.
template <class Body>
std::vector<ThreadWire> run_ranks(int size, const Body& body) {
    Switchboard board(size);
    std::vector<ThreadWire> wires;
    for (int rank = 0; rank < size; ++rank) wires.emplace_back(board, rank);
    run_ranks(board, [&](int rank) { body(wires[static_cast<std::size_t>(rank)]); });
    return wires;
}

}  // namespace guozhuang::test
