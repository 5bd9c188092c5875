#include "base/turn_scheduler.hpp"

#include <numeric>

namespace guozhuang::base {

TurnScheduler::TurnScheduler(int participants, std::uint64_t seed)
    : bells_(static_cast<std::size_t>(participants)), present_(bells_.size()), state_(seed) {
    std::iota(present_.begin(), present_.end(), 0);
}

TurnScheduler::Participant::Participant(TurnScheduler& scheduler, int number)
    : scheduler_(scheduler) {
    const bool last =
        scheduler.arrived_.fetch_add(1) + 1 == static_cast<int>(scheduler.bells_.size());
    if (last) scheduler.grant(scheduler.draw());
    scheduler.wait_for(number);
}

TurnScheduler::Participant::~Participant() {
    std::erase(scheduler_.present_, scheduler_.holder_.load());
    scheduler_.grant(scheduler_.present_.empty() ? nobody : scheduler_.draw());
}

void TurnScheduler::yield_turn() {
    const int self = holder_.load();
    grant(draw());
    wait_for(self);
}

/// splitmix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014): any seed will do, and every
/// standard library draws the same.
int TurnScheduler::draw() noexcept {
    std::uint64_t bits = state_ += 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return present_[static_cast<std::size_t>((bits ^ (bits >> 31)) % present_.size())];
}

void TurnScheduler::grant(int participant) noexcept {
    holder_.store(participant);
    if (participant != nobody) ring(bells_[static_cast<std::size_t>(participant)]);
}

void TurnScheduler::wait_for(int participant) {
    wait_until(bells_[static_cast<std::size_t>(participant)], {},
               [&] { return holder_.load() == participant; });
}

}  // namespace guozhuang::base
