#include "backends/device/launch_order.hpp"

#include <algorithm>
#include <utility>

namespace guozhuang::backends {

void LaunchOrder::open_set() {
    const base::Lock lock(mutex_);
    ++sets_;
}

void LaunchOrder::release_set() {
    const base::Lock lock(mutex_);
    --sets_;
}

bool LaunchOrder::concerns(std::uint16_t set) const {
    const base::Lock lock(mutex_);
    return set != world || sets_ > 0;
}

std::uint64_t LaunchOrder::propose(std::uint16_t set) {
    const base::Lock lock(mutex_);
    return numbers_[set] = ++highest_;
}

bool LaunchOrder::agree(std::uint16_t set, std::uint64_t highest) {
    const base::Lock lock(mutex_);
    numbers_.at(set) = highest;
    highest_ = std::max(highest_, highest);
    return numbers_.size() > 1;
}

bool LaunchOrder::is_next(std::uint16_t set) const {
    const base::Lock lock(mutex_);
    const std::pair own(numbers_.at(set), set);
    return std::ranges::all_of(
        numbers_, [&](const auto& other) { return own <= std::pair(other.second, other.first); });
}

bool LaunchOrder::end(std::uint16_t set) noexcept {
    const base::Lock lock(mutex_);
    numbers_.erase(set);
    return !numbers_.empty();
}

void LaunchOrder::begin_alone(device::Stream& stream) {
    const base::Lock lock(mutex_);
    const auto last = alone_.find(stream.ref().device.index);
    if (last != alone_.end()) stream.wait(last->second);
}

void LaunchOrder::end_alone(device::Stream& stream) {
    auto end = stream.record();
    const base::Lock lock(mutex_);
    alone_[stream.ref().device.index] = std::move(end);
}

LaunchTurn::LaunchTurn(LaunchOrder& order, const RankExchange& ranks, const wire::Group& group)
    : order_(order), group_(group) {
    const auto set = group.tag.context;
    const auto proposed = order_.propose(set);
    try {
        if (order_.agree(set, std::ranges::max(ranks.gather(proposed)))) wake_others();
        group.wait_until([&] { return order_.is_next(set); });
    } catch (...) {
        order_.end(set);
        throw;
    }
}

LaunchTurn::~LaunchTurn() {
    if (order_.end(group_.tag.context)) wake_others();
}

/// Bundles of this rank's other sets, which wait for their turn on other threads.
void LaunchTurn::wake_others() noexcept {
    base::ring(group_.transport.doorbell(), base::Sleepers::idle,
               group_.transport.wait_settings().audience);
}

}  // namespace guozhuang::backends
