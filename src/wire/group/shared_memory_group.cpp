#include "wire/group/shared_memory_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "base/failpoint.hpp"
#include "base/wait.hpp"
#include "device/host/stream_copy.hpp"

namespace guozhuang::wire {
namespace {

/// Smaller copies are not streamed: too much of them would be partial cache lines.
constexpr std::size_t least_streamed = 1024;
constexpr int turns_to_spin = 100;
/// The engine's lock is held meanwhile.
constexpr std::chrono::microseconds longest_spin(100);
constexpr std::chrono::milliseconds longest_sleep(1);

base::WaitSettings capped(base::WaitSettings settings) {
    settings.spin = std::min(settings.spin, longest_spin);
    settings.sleep_first = settings.sleep_limit = longest_sleep;
    return settings;
}

/// How long a thread waits for the others' offers: while it spins, or a short sleep if it must not
/// spin. Ranks that take turns never sleep: they give up after a while.
class OfferWait {
public:
    explicit OfferWait(const Group& group)
        : takes_turns_(group.transport.wait_settings().turn_scheduler != nullptr),
          wait_loop_(group.transport.doorbell(), capped(group.transport.wait_settings())) {}
    /// One turn; false if there is none left. Throws what ends the job.
    bool turn() {
        if (takes_turns_ ? ++turns_ > turns_to_spin : wait_loop_.about_to_sleep() && !may_sleep())
            return false;
        wait_loop_.pause();
        return true;
    }

private:
    bool may_sleep() {
        if (!wait_loop_.must_sleep()) return false;
        const auto now = base::Clock::now();
        if (!sleeps_until_) sleeps_until_ = now + longest_sleep;
        return now < *sleeps_until_;
    }

    const bool takes_turns_;
    base::WaitLoop wait_loop_;
    int turns_ = 0;
    std::optional<base::Clock::time_point> sleeps_until_;
};

}  // namespace

SharedMemoryGroup::SharedMemoryGroup(const Group& group, const Staging& staging)
    : group_(group), staging_(staging) {}

std::size_t SharedMemoryGroup::put(std::span<std::byte> room,
                                   std::span<const std::byte> bytes) noexcept {
    if (streams_ && bytes.size() >= least_streamed) {
        device::stream_copy(room, bytes);
        streamed_ = true;
    } else if (!bytes.empty()) {
        std::memcpy(room.data(), bytes.data(), bytes.size());
    }
    return bytes.size();
}

void SharedMemoryGroup::fence() noexcept {
    if (std::exchange(streamed_, false)) device::fence_streamed();
}

void SharedMemoryGroup::publish(std::size_t bytes) {
    base::pass(base::Failpoint::round_publish);
    fence();
    auto& head = staging_.head(rank(), round_);
    head.offer = std::exchange(offer_, 0);
    if (head.offer != 0) {
        offered_ = round_;
        bytes_offered_ = bytes;
    } else {
        group_.transport.count_staged(bytes);
    }
    head.round.store(round_++, std::memory_order_seq_cst);
    group_.nudge_others();
}

/// word(peer): how far a rank has come.
template <class Word>
void SharedMemoryGroup::await_all(std::uint64_t round, const Word& word) {
    for (int peer = 0; peer < size(); ++peer)
        group_.wait_until([&] { return word(peer).load(std::memory_order_seq_cst) >= round; });
}

bool SharedMemoryGroup::await(std::uint64_t round) {
    base::pass(base::Failpoint::round_await);
    if (std::exchange(offered_, 0) == round) return goes_ahead(round);
    await_all(round, [&](int peer) -> auto& { return staging_.head(peer, round).round; });
    may_offer_ = true;
    return true;
}

void SharedMemoryGroup::answer(std::uint64_t round, std::size_t bytes) {
    fence();
    group_.transport.count_staged(bytes);
    staging_.progress[static_cast<std::size_t>(rank())].answered.store(round,
                                                                       std::memory_order_seq_cst);
    group_.nudge_others();
}

void SharedMemoryGroup::await_answers(std::uint64_t round) {
    await_all(round, [&](int peer) -> auto& {
        return staging_.progress[static_cast<std::size_t>(peer)].answered;
    });
}

std::span<std::byte> SharedMemoryGroup::at(int peer, const RegionRef& ref) const {
    const auto memory =
        group_.transport.regions()->at(group_.ranks[static_cast<std::size_t>(peer)], ref);
    if (memory.empty() && base::is_aborted(group_.transport.doorbell()))
        base::throw_cause(group_.transport.doorbell());
    return memory;
}

float SharedMemoryGroup::least_cost(std::size_t slot) const noexcept {
    const auto least = std::ranges::min_element(
        staging_.progress, {}, [slot](const auto& peer) { return peer.costs[slot]; });
    return least->costs[slot];
}

// --- offers --------------------------------------------------------------------------------------

bool SharedMemoryGroup::begin_offer(std::uint64_t fingerprint) noexcept {
    leave_out_doubted();
    if (!may_offer_) return false;
    offer_ = std::max<std::uint64_t>(fingerprint, 1);
    return true;
}

void SharedMemoryGroup::decline() noexcept {
    leave_out_doubted();
    for (int peer = 0; peer < size(); ++peer) {
        const auto& head = staging_.head(peer, round_);
        if (head.round.load() != round_ || head.offer == 0) continue;
        settle(round_);
        return leave_out(round_);
    }
}

/// Waits until all ranks have offered, or one doubts the round; this rank doubts it when it gives
/// up, or if the job is over, which the call finds out when it is submitted.
bool SharedMemoryGroup::goes_ahead(std::uint64_t round) noexcept {
    bool is_on = false;
    try {
        is_on = await_offers(round);
    } catch (const std::exception&) {
        is_on = false;
    }
    if (!is_on) is_on = settle(round);
    if (is_on)
        group_.transport.count_staged(bytes_offered_);
    else
        leave_out(round);
    return is_on;
}

/// Whether all have offered the same, and nobody doubts the round; otherwise this rank does.
bool SharedMemoryGroup::await_offers(std::uint64_t round) {
    const auto own = staging_.head(rank(), round).offer;
    std::optional<OfferWait> wait;
    for (int peer = 0; peer < size() && doubted_round() != round;) {
        const auto& theirs = staging_.head(peer, round);
        if (theirs.round.load() == round) {
            if (theirs.offer != own) return false;
            ++peer;
            continue;
        }
        if (!wait) wait.emplace(group_);
        if (!wait->turn()) return false;
    }
    // The last look at the verdict comes after the look at the last offer.
    return doubted_round() != round;
}

/// Doubts the round and gives the verdict, each unless another rank has, so that all get the same
/// verdict.
bool SharedMemoryGroup::settle(std::uint64_t round) noexcept {
    auto& word = staging_.verdict->word;
    auto verdict = word.load();
    do {
        if (verdict / 4 >= round) break;
    } while (!word.compare_exchange_weak(verdict, 4 * round + doubted));
    verdict = word.load();
    if (verdict == 4 * round + doubted &&
        word.compare_exchange_strong(verdict, 4 * round + (all_have_offered(round) ? on : off))) {
        group_.nudge_others();
        verdict = word.load();
    }
    return verdict != 4 * round + off;
}

bool SharedMemoryGroup::all_have_offered(std::uint64_t round) const noexcept {
    const auto& first = staging_.head(0, round);
    for (int peer = 0; peer < size(); ++peer) {
        const auto& head = staging_.head(peer, round);
        if (head.round.load() != round || head.offer != first.offer) return false;
    }
    return true;
}

/// A round that is doubted and that this rank has not offered does not go ahead.
void SharedMemoryGroup::leave_out_doubted() noexcept {
    offer_ = 0;
    const auto round = doubted_round();
    if (round < round_) return;
    settle(round);
    leave_out(round);
}

void SharedMemoryGroup::leave_out(std::uint64_t round) noexcept {
    round_ = round + 1;
    may_offer_ = false;
}

}  // namespace guozhuang::wire
