#include "wire/group/eager_rounds.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>

#include "base/wait.hpp"

namespace guozhuang::wire {
namespace {

constexpr int turns_to_spin = 100;
/// The engine's lock is held meanwhile.
constexpr std::chrono::microseconds longest_spin(100);
constexpr std::chrono::milliseconds longest_sleep(1);

base::WaitSettings capped(base::WaitSettings settings) {
    settings.spin = std::min(settings.spin, longest_spin);
    settings.park_first = settings.park_limit = longest_sleep;
    return settings;
}

/// How long a thread waits for the others' offers: as long as it spins, or sleeps a while where it
/// must not spin. Ranks that take turns never park: they give up after a while.
class OfferWait {
public:
    explicit OfferWait(const Group& group)
        : takes_turns_(group.transport.wait_settings().turn_scheduler != nullptr),
          wait_loop_(group.transport.doorbell(), capped(group.transport.wait_settings())) {}
    /// One turn; false if there is none left. Throws what ends the job.
    bool turn() {
        if (takes_turns_ ? ++turns_ > turns_to_spin : wait_loop_.about_to_park() && !may_sleep())
            return false;
        wait_loop_.pause();
        return true;
    }

private:
    bool may_sleep() {
        if (!wait_loop_.sleeps_at_once()) return false;
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

EagerRounds::EagerRounds(const Group& group, const EagerSlots& slots)
    : group_(group),
      slots_(slots),
      round_(slots.ranks[static_cast<std::size_t>(group.group_rank)].finished.load() + 1) {}

std::span<std::byte> EagerRounds::begin() noexcept {
    const auto opened = slots_.rounds->opened.load();
    if (opened >= round_) {
        if (is_decided(opened)) {
            leave(opened);
            return {};
        }
        round_ = opened;
    } else if (round_ > 2 && !all_have_finished(round_ - 2)) {
        return {};
    }
    return offer_of(group_.group_rank, round_).data;
}

bool EagerRounds::all_have_finished(std::uint64_t round) noexcept {
    if (finished_by_all_ < round)
        for (const auto& each : slots_.ranks)
            if (each.finished.load() < round) return false;
    finished_by_all_ = std::max(finished_by_all_, round);
    return true;
}

bool EagerRounds::offer(std::uint64_t fingerprint, std::size_t bytes) noexcept {
    auto& own = offer_of(group_.group_rank, round_);
    own.fingerprint = fingerprint;
    own.round.store(round_);
    for (auto opened = slots_.rounds->opened.load();
         opened < round_ && !slots_.rounds->opened.compare_exchange_weak(opened, round_);) {
    }
    if (!goes_ahead(fingerprint)) {
        leave(round_);
        return false;
    }
    if (slots_.ranks.size() > 1) group_.transport.count_staged(bytes);
    finished_by_all_ = round_ - 1;  // whoever offers has finished what was before
    return true;
}

/// Waits until the round is decided, by this rank at the latest when it gives up.
bool EagerRounds::goes_ahead(std::uint64_t fingerprint) noexcept try {
    OfferWait wait(group_);
    for (int peer = 0; !is_decided(round_);) {
        for (; peer < static_cast<int>(slots_.ranks.size()); ++peer) {
            const auto& theirs = offer_of(peer, round_);
            if (theirs.round.load() != round_) break;
            if (theirs.fingerprint != fingerprint) return decide(round_, false);
        }
        if (peer == static_cast<int>(slots_.ranks.size())) return decide(round_, true);
        if (!wait.turn()) return decide(round_, false);
    }
    return decide(round_, false);
} catch (const std::exception&) {  // the job is over, as the call will hear when it is submitted
    return decide(round_, false);
}

void EagerRounds::finish() noexcept {
    leave(round_);
}

void EagerRounds::decline() noexcept {
    const auto opened = slots_.rounds->opened.load();
    if (opened < round_) return;
    decide(opened, false);
    leave(opened);
}

/// Returns what is decided: this, or what another rank has decided before. Whoever decides wakes
/// the others. The last to offer sees all offers, so nobody sleeps on because none decides.
bool EagerRounds::decide(std::uint64_t round, bool goes_ahead) noexcept {
    auto& decision = slots_.rounds->decisions[round % 2];
    auto decided = decision.load();
    while (decided / 2 != round)
        if (decision.compare_exchange_weak(decided, 2 * round + (goes_ahead ? 1 : 0))) {
            group_.nudge_others();
            return goes_ahead;
        }
    return decided % 2 == 1;
}

bool EagerRounds::is_decided(std::uint64_t round) const noexcept {
    return slots_.rounds->decisions[round % 2].load() / 2 == round;
}

void EagerRounds::leave(std::uint64_t round) noexcept {
    slots_.ranks[static_cast<std::size_t>(group_.group_rank)].finished.store(round);
    round_ = round + 1;
}

}  // namespace guozhuang::wire
