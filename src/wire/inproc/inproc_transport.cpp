#include "wire/inproc/inproc_transport.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <fmt/format.h>
#include <guozhuang/error.hpp>

#include "base/mutex.hpp"
#include "topology/machine.hpp"
#include "wire/shm/host_messages.hpp"
#include "wire/traffic_counter.hpp"

namespace guozhuang::wire {
namespace {

/// Small, because there are many short-lived hubs, and messages of several chunks are useful in
/// tests.
std::size_t stage_bytes_for(int hosts) {
    constexpr std::size_t on_one_host = std::size_t{64} << 10;
    return hosts == 1 ? on_one_host : 2 * on_one_host * static_cast<std::size_t>(hosts);
}

}  // namespace

namespace inproc {

struct alignas(64) CacheLine {
    std::byte bytes[64];
};

/// One half of a message: a send or a receive. Its address is the ticket.
struct InFlight {
    enum class Progress : std::uint8_t { pending, done, wrong_length };

    int rank = 0;  ///< whose half it is
    int peer = 0;
    Tag tag;
    std::span<const std::byte> source;
    std::span<std::byte> target;
    std::atomic<Progress> progress{Progress::pending};
};

/// The sends and receives of one rank. They live as long as the hub: an aborted wait leaves its
/// half behind.
class InFlightPool {
public:
    InFlight& take() {
        const base::Lock lock(mutex_);
        if (spent_.empty()) return messages_.emplace_back();
        InFlight& half = *spent_.back();
        spent_.pop_back();
        return half;
    }
    void give_back(InFlight& half) {
        const base::Lock lock(mutex_);
        spent_.push_back(&half);
    }

private:
    base::Mutex mutex_;
    std::deque<InFlight> messages_ GUOZHUANG_GUARDED_BY(mutex_);
    std::vector<InFlight*> spent_ GUOZHUANG_GUARDED_BY(mutex_);
};

/// One rank.
struct Mailbox {
    base::Doorbell bell;
    trace::Activity activity;
    InFlightPool messages;
    base::Mutex mutex;
    /// Messages to the rank that are not yet matched, oldest first.
    std::deque<InFlight*> sends GUOZHUANG_GUARDED_BY(mutex), receives GUOZHUANG_GUARDED_BY(mutex);
};

/// Takes the oldest half that `other` (of rank `peer`) completes out of `waiting`; null if there is
/// none.
InFlight* take_match(std::deque<InFlight*>& waiting, const InFlight& other, bool other_sends) {
    const auto fits = [&](const InFlight* half) {
        return half->tag == other.tag &&
               (other_sends ? half->peer == other.rank : half->rank == other.peer);
    };
    const auto found = std::find_if(waiting.begin(), waiting.end(), fits);
    if (found == waiting.end()) return nullptr;
    InFlight* match = *found;
    waiting.erase(found);
    return match;
}

/// Completes both halves. Neither may be touched afterwards: its owner may already have taken it
/// back.
void complete(InFlight& send, InFlight& receive) {
    auto outcome = InFlight::Progress::wrong_length;
    if (send.source.size() == receive.target.size()) {
        outcome = InFlight::Progress::done;
        if (!send.source.empty())
            std::memcpy(receive.target.data(), send.source.data(), send.source.size());
    }
    send.progress.store(outcome, std::memory_order_release);
    receive.progress.store(outcome, std::memory_order_release);
}

}  // namespace inproc

using namespace inproc;

struct InprocHub::State {
    State(int ranks, int cores, const std::optional<base::WaitSettings>& wait_settings, int hosts)
        : mailboxes(static_cast<std::size_t>(ranks)),
          settings(wait_settings.value_or(topology::wait_settings(ranks, cores))),
          ranks_share_cores(ranks > cores),
          stage_bytes(stage_bytes_for(hosts)),
          messages(MessageRings::bytes_for(ranks) / sizeof(CacheLine)) {
        for (int rank = 0; rank < ranks; ++rank) host_of.push_back(rank * hosts / ranks);
        for (Mailbox& mailbox : mailboxes) bells.push_back(&mailbox.bell);
        rings().initialise();
    }

    Mailbox& of(int rank) { return mailboxes[static_cast<std::size_t>(rank)]; }
    MessageRings rings() {
        return {.memory = std::as_writable_bytes(std::span(messages)),
                .ranks = static_cast<int>(mailboxes.size())};
    }
    std::vector<HostMessages::HostRank> host_ranks() {
        std::vector<HostMessages::HostRank> all;
        for (Mailbox& mailbox : mailboxes)
            all.push_back({static_cast<int>(all.size()), mailbox.bell});
        return all;
    }
    void abort(const base::AbortCause& cause) noexcept;

    std::deque<Mailbox> mailboxes;
    base::WaitSettings settings;
    bool ranks_share_cores;
    std::vector<int> host_of;            ///< by rank
    std::vector<base::Doorbell*> bells;  ///< likewise
    std::size_t stage_bytes;
    std::vector<CacheLine> messages;
    std::atomic<bool> aborted{false};
    std::atomic<int> closed{0};
};

namespace {

class InprocTransport final : public Transport {
public:
    InprocTransport(std::shared_ptr<InprocHub::State> state, int rank)
        : state_(std::move(state)),
          rank_(rank),
          topology_{.rank = rank,
                    .host_of = state_->host_of,
                    .ranks_share_cores = state_->ranks_share_cores},
          messages_(state_->rings(), state_->host_ranks(), rank) {}

    Ticket send(int to, Tag tag, std::span<const std::byte> bytes) override {
        require_rank(to);
        if (tag.lane == Lane::control) {
            require_running();
            messages_.send(to, tag.context, bytes);
            return {};
        }
        traffic_.count_message(bytes.size());
        return start(to, tag, bytes, {}, true);
    }

    Ticket receive(int from, Tag tag, std::span<std::byte> bytes) override {
        require_rank(from);
        if (tag.lane == Lane::control)
            throw Error(ErrorCode::internal, "control messages are polled, not received");
        return start(from, tag, {}, bytes, false);
    }

    bool test(Ticket& ticket) override {
        if (ticket.id == 0) return true;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): a ticket is an address
        auto& half = *reinterpret_cast<InFlight*>(ticket.id);
        const auto progress = half.progress.load(std::memory_order_acquire);
        if (progress == InFlight::Progress::pending) return false;
        const int peer = half.peer;
        state_->of(rank_).messages.give_back(half);
        ticket = {};
        if (progress == InFlight::Progress::wrong_length) {
            throw Error(
                ErrorCode::wire,
                fmt::format("ranks {} and {} disagree about the length of a message", rank_, peer),
                {.ranks = {rank_, peer}});
        }
        return true;
    }

    std::optional<Message> poll(Tag tag) override { return messages_.poll(tag.context); }
    bool flushed() override { return messages_.flush(); }

    void abort(const base::AbortCause& cause) noexcept override { state_->abort(cause); }

    /// Every copy is made under a mailbox's lock: once this rank's halves are out of all
    /// mailboxes, nobody touches their memory.
    bool abandon() noexcept override {
        abandoned_.store(true, std::memory_order_seq_cst);
        regions()->remove_all();
        const auto is_mine = [&](const InFlight* half) { return half->rank == rank_; };
        for (Mailbox& mailbox : state_->mailboxes) {
            const base::Lock lock(mailbox.mutex);
            std::erase_if(mailbox.sends, is_mine);
            std::erase_if(mailbox.receives, is_mine);
        }
        return true;
    }

    trace::Activity& activity() noexcept override { return state_->of(rank_).activity; }
    base::Doorbell& doorbell() noexcept override { return state_->of(rank_).bell; }
    const base::WaitSettings& wait_settings() const noexcept override { return state_->settings; }
    void count_staged(std::size_t bytes) noexcept override { traffic_.count_bytes(bytes); }
    std::size_t stage_bytes() const noexcept override { return state_->stage_bytes; }
    std::optional<trace::RankStatus> look_at(int rank) override {
        return trace::status_of(state_->of(rank).activity, "a thread of this process", false);
    }
    void nudge(int rank, base::Audience audience) noexcept override {
        base::nudge(state_->of(rank).bell, audience);
    }
    const topology::Topology& topology() const noexcept override { return topology_; }
    const char* description() const noexcept override { return "in-process"; }
    Traffic traffic() const noexcept override { return traffic_.total(); }

    std::unique_ptr<Transport> shrink(const base::Config& config) override {
        return size() == 1 ? InprocHub(1).transport(0) : Transport::shrink(config);
    }
    void close() override {
        if (closed_) return;
        closed_ = true;
        state_->closed.fetch_add(1, std::memory_order_seq_cst);
        for (base::Doorbell* bell : state_->bells) base::ring(*bell, base::Sleepers::for_news);
        base::wait_until(doorbell(), wait_settings(), [&] {
            messages_.discard();
            return state_->closed.load(std::memory_order_seq_cst) >= size();
        });
    }

private:
    void require_rank(int rank) const {
        if (rank < 0 || rank >= size())
            throw Error(ErrorCode::internal, fmt::format("no rank {} among {}", rank, size()));
    }

    void require_running() const {
        if (state_->aborted.load(std::memory_order_seq_cst) ||
            abandoned_.load(std::memory_order_seq_cst))
            base::throw_cause(state_->of(rank_).bell);
    }

    /// Completes the message if its other half is there, or leaves this half for the other one to
    /// find. The copy is made under the receiver's lock, so that abort() can promise that no copy
    /// is running.
    Ticket start(int peer, Tag tag, std::span<const std::byte> source, std::span<std::byte> target,
                 bool sends) {
        InFlight& half = state_->of(rank_).messages.take();
        half.rank = rank_;
        half.peer = peer;
        half.tag = tag;
        half.source = source;
        half.target = target;
        half.progress.store(InFlight::Progress::pending, std::memory_order_relaxed);
        match(half, state_->of(sends ? peer : rank_), sends);
        base::ring(state_->of(peer).bell, base::Sleepers::for_news, base::audience_of(tag.context));
        return {reinterpret_cast<std::uintptr_t>(&half)};
    }

    void match(InFlight& half, Mailbox& receiver, bool sends) {
        const base::Lock lock(receiver.mutex);
        require_running();
        InFlight* other = take_match(sends ? receiver.receives : receiver.sends, half, sends);
        if (other == nullptr) {
            (sends ? receiver.sends : receiver.receives).push_back(&half);
        } else if (sends) {
            complete(half, *other);
        } else {
            complete(*other, half);
        }
    }

    std::shared_ptr<InprocHub::State> state_;
    const int rank_;
    const topology::Topology topology_;
    HostMessages messages_;
    bool closed_ = false;
    std::atomic<bool> abandoned_{false};
    TrafficCounter traffic_;
};

}  // namespace

InprocHub::InprocHub(int ranks, std::optional<base::WaitSettings> settings, int hosts)
    : state_(std::make_shared<State>(ranks, topology::usable_cores(topology::this_machine()),
                                     settings, hosts)) {}

InprocHub::~InprocHub() = default;

std::unique_ptr<Transport> InprocHub::transport(int rank) {
    return std::make_unique<InprocTransport>(state_, rank);
}

void InprocHub::abort(const base::AbortCause& cause) noexcept {
    state_->abort(cause);
}

void InprocHub::State::abort(const base::AbortCause& cause) noexcept {
    base::note_cause(bells, cause);
    aborted.store(true, std::memory_order_seq_cst);
    for (Mailbox& mailbox : mailboxes) {
        const base::Lock no_copy_under_way(mailbox.mutex);
    }
    for (base::Doorbell* bell : bells) base::abort(*bell);
}

}  // namespace guozhuang::wire
