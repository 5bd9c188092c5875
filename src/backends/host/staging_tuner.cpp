#include "backends/host/staging_tuner.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <fmt/format.h>

#include "base/log.hpp"

namespace guozhuang::backends {
namespace {

/// Operations below 64 KiB are not tried: their times depend on the scheduler.
constexpr int least_class = 16;
/// Larger operations share this class: they are few, and their trials would take long.
constexpr int largest_class = 24;

}  // namespace

std::size_t Trials::next() const noexcept {
    return tries() ? tried_ / trial % ways : best_;
}

void Trials::advance() noexcept {
    if (tries()) ++tried_;
    ++turn_;
}

/// A rank may be late for an operation but never early, so the believed cost of a way falls at once
/// and rises in steps; one step alone does not change the choice.
bool Trials::record(std::size_t way, float cost) noexcept {
    constexpr float step = 1.125F, margin = 1.15F;
    costs_[way] = std::min(cost, costs_[way] * step);
    const auto least = std::ranges::min_element(costs_);
    if (*least * margin >= costs_[best_]) return false;
    best_ = static_cast<std::size_t>(least - costs_.begin());
    return true;
}

StagingTuner::Run StagingTuner::begin(OperationKind operation, std::size_t bytes) {
    const int size = static_cast<int>(std::bit_width(bytes)) - 1;
    if (size < least_class) {
        group_.set_streams(false);
        return {};
    }
    const Key key{operation, std::min(size, largest_class)};
    const auto way = trials_[key].next();
    group_.set_streams(streams(way));
    return {.key = key, .bytes = bytes, .way = way, .began = base::Clock::now()};
}

void StagingTuner::end(const Run& run) {
    if (run.bytes == 0) return;
    trials_[run.key].advance();
    if (published_) record(*published_);
    slot_ ^= 1;  // other ranks may still read the slot published before
    const std::chrono::duration<float, std::nano> took = base::Clock::now() - run.began;
    group_.publish_cost(slot_, took.count() / static_cast<float>(run.bytes));
    published_ = run;
}

void StagingTuner::record(const Run& run) {
    const auto& [operation, size] = run.key;
    auto& trials = trials_.at(run.key);
    if (!trials.record(run.way, group_.least_cost(slot_)) || group_.rank() != 0) return;
    base::log(LogLevel::debug, "{} of {} KiB by {} ranks: {} stores", name_of(operation),
              (std::size_t{1} << size) / 1024, group_.size(),
              streams(trials.best()) ? "streaming" : "plain");
}

}  // namespace guozhuang::backends
