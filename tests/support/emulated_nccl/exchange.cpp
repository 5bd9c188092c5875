#include "support/emulated_nccl/exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include "support/emulated_nccl/calls.hpp"
#include "support/emulated_nccl/reduction.hpp"

namespace guozhuang::emulated_nccl {
namespace {

/// A call to be told to another rank, and the bytes that come with it.
struct Outgoing {
    Call call;
    std::span<const std::byte> payload;
};
struct Incoming {
    Call call;  ///< what the other rank must have called
    std::vector<std::byte> payload;
};

std::string text_of(const Call& call) {
    static constexpr std::array names = {"ncclAllReduce",     "ncclBroadcast", "ncclAllGather",
                                         "ncclReduceScatter", "ncclReduce",    "ncclSend",
                                         "ncclRecv"};
    return std::string(names.at(static_cast<std::size_t>(call.kind))) + " of " +
           std::to_string(call.count) + " elements of type " + std::to_string(call.type) + ", op " +
           std::to_string(call.op) + ", root or peer " + std::to_string(call.peer);
}

/// Head and payloads as they go through a pipe.
template <class Byte>
class Bytes {
public:
    void add(std::span<Byte> part) {
        if (!part.empty()) parts_.push_back(part);
    }
    bool is_empty() const noexcept { return first_ == parts_.size(); }
    std::span<Byte> next() const { return parts_[first_]; }
    void drop(std::size_t bytes) {
        parts_[first_] = parts_[first_].subspan(bytes);
        if (parts_[first_].empty()) ++first_;
    }

private:
    std::vector<std::span<Byte>> parts_;
    std::size_t first_ = 0;
};

bool push(Pipe& pipe, Bytes<const std::byte>& bytes) {
    bool moved = false;
    while (!bytes.is_empty()) {
        const auto written = pipe.written.load(std::memory_order_relaxed);
        const auto at = written % Pipe::room,
                   free = Pipe::room - (written - pipe.read.load(std::memory_order_acquire));
        const auto count = std::min({bytes.next().size(), free, Pipe::room - at});
        if (count == 0) break;
        std::memcpy(&pipe.bytes[at], bytes.next().data(), count);
        pipe.written.store(written + count, std::memory_order_release);
        bytes.drop(count);
        moved = true;
    }
    return moved;
}

bool pull(Pipe& pipe, Bytes<std::byte>& bytes) {
    bool moved = false;
    while (!bytes.is_empty()) {
        const auto read = pipe.read.load(std::memory_order_relaxed);
        const auto at = read % Pipe::room,
                   there = pipe.written.load(std::memory_order_acquire) - read;
        const auto count = std::min({bytes.next().size(), there, Pipe::room - at});
        if (count == 0) break;
        std::memcpy(bytes.next().data(), &pipe.bytes[at], count);
        pipe.read.store(read + count, std::memory_order_release);
        bytes.drop(count);
        moved = true;
    }
    return moved;
}

/// All that this rank and another one have to do with each other.
struct Side {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    std::vector<Call> heard;
};

class Exchange {
public:
    explicit Exchange(const Launch& launch)
        : launch_(launch), sides_(static_cast<std::size_t>(launch.ranks)) {
        for (const auto& operation : launch.operations) plan(operation);
    }

    /// False if it is aborted.
    bool move() {
        std::vector<Bytes<const std::byte>> out(sides_.size());
        std::vector<Bytes<std::byte>> in(sides_.size());
        for (std::size_t peer = 0; peer < sides_.size(); ++peer) {
            auto& side = sides_[peer];
            side.heard.resize(side.incoming.size());
            for (const auto& each : side.outgoing) {
                out[peer].add(std::as_bytes(std::span(&each.call, 1)));
                out[peer].add(each.payload);
            }
            for (std::size_t i = 0; i < side.incoming.size(); ++i) {
                in[peer].add(std::as_writable_bytes(std::span(&side.heard[i], 1)));
                in[peer].add(side.incoming[i].payload);
            }
        }
        return run_pipes(out, in);
    }

    /// Writes the results: everything has been read by then, so they may be in place.
    void finish() {
        next_.assign(sides_.size(), 0);
        for (const auto& operation : launch_.operations) finish(operation);
    }

private:
    bool run_pipes(std::span<Bytes<const std::byte>> out, std::span<Bytes<std::byte>> in) {
        auto& pipes = launch_.segment->pipes;
        const auto self = static_cast<std::size_t>(launch_.rank);
        for (bool done = false; !done;) {
            if (*launch_.aborted) return false;
            bool moved = false;
            done = true;
            for (std::size_t peer = 0; peer < sides_.size(); ++peer) {
                moved |= push(pipes[self][peer], out[peer]);
                moved |= pull(pipes[peer][self], in[peer]);
                check_heard(peer, in[peer]);
                done &= out[peer].is_empty() && in[peer].is_empty();
            }
            if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
        return true;
    }

    /// A head that differs is known before its payload, whose size would be another.
    void check_heard(std::size_t peer, const Bytes<std::byte>& in) {
        auto& side = sides_[peer];
        for (std::size_t i = 0; i < side.heard.size(); ++i) {
            const auto* head = reinterpret_cast<const std::byte*>(&side.heard[i]);
            const bool is_open = !in.is_empty() && in.next().data() >= head &&
                                 in.next().data() < head + sizeof(Call);
            if (is_open) return;
            if (side.heard[i] != side.incoming[i].call)
                break_rule("rank " + std::to_string(launch_.rank) + " expects " +
                           text_of(side.incoming[i].call) + "; rank " + std::to_string(peer) +
                           " calls " + text_of(side.heard[i]));
            if (!in.is_empty() && in.next().data() >= side.incoming[i].payload.data() &&
                in.next().data() <
                    side.incoming[i].payload.data() + side.incoming[i].payload.size())
                return;
        }
    }

    void plan(const Operation& operation) {
        const auto& call = operation.call;
        const auto bytes = call.count * size_of(call.type);
        if (call.kind == Kind::send) {
            auto told = call;
            told.peer = launch_.rank;
            return side(call.peer).outgoing.push_back({told, {operation.from, bytes}});
        }
        if (call.kind == Kind::receive) {
            auto expected = call;
            expected.kind = Kind::send;
            return side(call.peer).incoming.push_back({expected, std::vector<std::byte>(bytes)});
        }
        for (int peer = 0; peer < launch_.ranks; ++peer) {
            side(peer).outgoing.push_back(
                {call,
                 {operation.from + (call.kind == Kind::reduce_scatter
                                        ? static_cast<std::size_t>(peer) * bytes
                                        : 0),
                  gives(call, launch_.rank, peer) ? bytes : 0}});
            side(peer).incoming.push_back(
                {call, std::vector<std::byte>(gives(call, peer, launch_.rank) ? bytes : 0)});
        }
    }

    static bool gives(const Call& call, int from, int to) {
        if (call.kind == Kind::broadcast) return from == call.peer;
        if (call.kind == Kind::reduce) return to == call.peer;
        return true;
    }

    void finish(const Operation& operation) {
        const auto& call = operation.call;
        if (call.kind == Kind::send) return;
        if (call.kind == Kind::receive) return write(operation.into, take(call.peer));
        std::vector<std::span<const std::byte>> payloads;
        for (int peer = 0; peer < launch_.ranks; ++peer) payloads.push_back(take(peer));
        if (call.kind == Kind::broadcast)
            return write(operation.into, payloads[static_cast<std::size_t>(call.peer)]);
        if (call.kind == Kind::all_gather) {
            auto* into = operation.into;
            for (const auto& payload : payloads) into = write_next(into, payload);
            return;
        }
        if (payloads.front().empty()) return;  // not the root
        std::vector<std::byte> result(payloads.front().begin(), payloads.front().end());
        for (const auto& payload : std::span(payloads).subspan(1))
            combine(call.op, call.type, result, payload);
        write(operation.into, result);
    }

    static void write(std::byte* into, std::span<const std::byte> bytes) {
        write_next(into, bytes);
    }
    static std::byte* write_next(std::byte* into, std::span<const std::byte> bytes) {
        if (!bytes.empty()) std::memcpy(into, bytes.data(), bytes.size());
        return into + bytes.size();
    }
    std::span<const std::byte> take(int peer) {
        return side(peer).incoming[next_[static_cast<std::size_t>(peer)]++].payload;
    }
    Side& side(int peer) { return sides_.at(static_cast<std::size_t>(peer)); }

    const Launch& launch_;
    std::vector<Side> sides_;
    std::vector<std::size_t> next_;
};

/// On a device there is room for the kernels of one communicator.
class RoomOnDevice {
public:
    explicit RoomOnDevice(const Launch& launch)
        : taken_(rooms()[static_cast<std::size_t>(launch.device)]) {
        while (!(has_ = !taken_.exchange(true)) && !*launch.aborted)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    ~RoomOnDevice() {
        if (has_) taken_ = false;
    }
    RoomOnDevice(const RoomOnDevice&) = delete;
    RoomOnDevice& operator=(const RoomOnDevice&) = delete;

private:
    static std::array<std::atomic<bool>, 16>& rooms() {
        static auto& all = *new std::array<std::atomic<bool>, 16>{};
        return all;
    }

    std::atomic<bool>& taken_;
    bool has_ = false;
};

}  // namespace

void run(const Launch& launch) {
    const RoomOnDevice room(launch);
    while (launch.fails && !*launch.aborted)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Exchange exchange(launch);
    if (exchange.move()) exchange.finish();
    --*launch.in_flight;
}

}  // namespace guozhuang::emulated_nccl
