#include "base/baton.hpp"

#include <numeric>

namespace guozhuang::base {

Baton::Baton(int parts, std::uint64_t seed)
    : bells_(static_cast<std::size_t>(parts)), present_(bells_.size()), state_(seed) {
    std::iota(present_.begin(), present_.end(), 0);
}

Baton::Part::Part(Baton& baton, int number) : baton_(baton) {
    const bool last = baton.arrived_.fetch_add(1) + 1 == static_cast<int>(baton.bells_.size());
    if (last) baton.give(baton.draw());
    baton.wait_for(number);
}

Baton::Part::~Part() {
    std::erase(baton_.present_, baton_.holder_.load());
    baton_.give(baton_.present_.empty() ? nobody : baton_.draw());
}

void Baton::pass() {
    const int self = holder_.load();
    give(draw());
    wait_for(self);
}

/// splitmix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014): any seed will do, and every
/// standard library draws the same.
int Baton::draw() noexcept {
    std::uint64_t bits = state_ += 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return present_[static_cast<std::size_t>((bits ^ (bits >> 31)) % present_.size())];
}

void Baton::give(int part) noexcept {
    holder_.store(part);
    if (part != nobody) ring(bells_[static_cast<std::size_t>(part)]);
}

void Baton::wait_for(int part) {
    wait_until(bells_[static_cast<std::size_t>(part)], {}, [&] { return holder_.load() == part; });
}

}  // namespace guozhuang::base
