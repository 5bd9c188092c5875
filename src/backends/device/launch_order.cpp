#include "backends/device/launch_order.hpp"

#include <algorithm>

namespace guozhuang::backends {

void LaunchOrder::open_set() {
    const base::Lock lock(mutex_);
    ++sets_;
}

void LaunchOrder::release_set() {
    const base::Lock lock(mutex_);
    --sets_;
}

bool LaunchOrder::concerns(Set set) const {
    const base::Lock lock(mutex_);
    return set != world || sets_ > 0;
}

std::uint64_t LaunchOrder::propose(Set set) {
    const base::Lock lock(mutex_);
    return numbers_[set] = ++highest_;
}

void LaunchOrder::agree(Set set, std::uint64_t highest) {
    const base::Lock lock(mutex_);
    numbers_.at(set) = highest;
    highest_ = std::max(highest_, highest);
}

bool LaunchOrder::is_next(Set set) const {
    const base::Lock lock(mutex_);
    const Position own{numbers_.at(set), set};
    return std::ranges::all_of(numbers_, [&](const auto& other) {
        return own <= Position{other.second, other.first};
    });
}

void LaunchOrder::end(Set set) noexcept {
    const base::Lock lock(mutex_);
    numbers_.erase(set);
}

void LaunchOrder::begin_alone(device::Stream& stream) {
    const base::Lock lock(mutex_);
    if (alone_) stream.wait(alone_);
}

void LaunchOrder::end_alone(device::Stream& stream) {
    auto end = stream.record();
    const base::Lock lock(mutex_);
    alone_ = std::move(end);
}

LaunchTurn::LaunchTurn(LaunchOrder& order, const RankExchange& ranks, const wire::Group& group)
    : order_(order), group_(group) {
    const auto set = group.tag.context;
    const auto proposed = order_.propose(set);
    try {
        order_.agree(set, std::ranges::max(ranks.gather(proposed)));
        group.wait_until([&] { return order_.is_next(set); });
    } catch (...) {
        order_.end(set);
        throw;
    }
}

LaunchTurn::~LaunchTurn() {
    order_.end(group_.tag.context);
    base::ring_local(group_.transport.doorbell(), group_.transport.wait_settings().audience);
}

}  // namespace guozhuang::backends
