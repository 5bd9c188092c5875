#include "backends/host/staging_tuner.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <fmt/format.h>

#include "base/log.hpp"

namespace guozhuang::backends {
namespace {

/// Trials are of operations of 64 KiB and more: what smaller ones take is the scheduler's matter. They do as the least of these.
constexpr int least_class = 16;
/// Larger ones do as these: few are so large, and their trials would take long.
constexpr int largest_class = 24;

}  // namespace

/// Every other cycle goes backwards: the ways meet what changes slowly, and what comes in turns, alike.
Trials::Turn Trials::next() noexcept {
    const auto turn = std::exchange(turn_, (turn_ + 1) % turns);
    if (turn >= trials()) return {.way = best_};
    const auto way = turn % ways_;
    return {.way = turn / ways_ % 2 == 0 ? way : ways_ - 1 - way, .is_trial = true};
}

bool Trials::record(std::size_t way, float cost) noexcept {
    costs_[way] = std::min(costs_[way], cost);
    if (++recorded_ < trials()) return false;
    const auto least = std::ranges::min_element(costs_);
    if (*least < unknown) best_ = static_cast<std::size_t>(least - costs_.begin());
    costs_.fill(unknown);
    recorded_ = 0;
    return true;
}

StagingTuner::Run StagingTuner::begin(engine::Operation operation, std::size_t bytes) {
    const int size = static_cast<int>(std::bit_width(bytes)) - 1;
    const Key key{operation, std::clamp(size, least_class, largest_class)};
    auto& trials = trials_.try_emplace(key, ways_).first->second;
    const auto turn = size < least_class ? Trials::Turn{.way = trials.best()} : trials.next();
    peers_.begin(streams(turn.way));
    return {.key = key,
            .bytes = bytes,
            .round = peers_.round(),
            .turn = turn,
            .began = turn.is_trial ? base::Clock::now() : base::Clock::time_point{}};
}

void StagingTuner::end(const Run& run) {
    if (peers_.round() == run.round) return;  // there was nothing to move, so the others may not have told yet
    if (told_) record(*told_);
    told_.reset();
    if (!run.turn.is_trial) return;
    slot_ ^= 1;  // in the other, the rank may still read what was told before
    peers_.tell_cost(slot_, cost_of(run));
    told_ = run;
}

/// Only what has passed over the stage says something about stages: of memory that all ranks can reach that is little or nothing.
float StagingTuner::cost_of(const Run& run) const {
    const auto staged = peers_.bytes_put();
    if (staged < run.bytes / static_cast<std::size_t>(2 * peers_.size())) return Trials::unknown;
    return std::chrono::duration<float, std::nano>(base::Clock::now() - run.began).count() / static_cast<float>(staged);
}

void StagingTuner::record(const Run& trial) {
    const auto& [operation, size] = trial.key;
    auto& trials = trials_.at(trial.key);
    if (!trials.record(trial.turn.way, peers_.least_cost(slot_)) || peers_.rank() != 0) return;
    base::log(LogLevel::debug, "{} of {} KiB by {} ranks: {} stores, segments of 1/{}", name_of(operation), (std::size_t{1} << size) / 1024,
              peers_.size(), streams(trials.best()) ? "streaming" : "plain", 1 << trials.best() / 2);
}

std::size_t StagingTuner::shortened(std::size_t segment_bytes, std::size_t way) noexcept {
    constexpr std::size_t least = std::size_t{8} << 10;
    return std::max(segment_bytes >> way / 2, std::min(segment_bytes, least));
}

}  // namespace guozhuang::backends
