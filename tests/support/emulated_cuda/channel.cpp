#include "support/emulated_cuda/channel.hpp"

#include <algorithm>

#include "support/emulated_cuda/configuration.hpp"

namespace guozhuang::emulated_cuda {

std::uint64_t Channel::take_ticket() {
    const std::lock_guard lock(mutex_);
    return tickets_++;
}

void Channel::wait_for(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return at_ == ticket; });
}

void Channel::end(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    at_ = ticket + 1;
    changed_.notify_all();
}

std::shared_ptr<Channel> Channels::next() {
    const auto limit = static_cast<std::size_t>(configuration().channels);
    const std::lock_guard lock(mutex_);
    while (all_.size() < limit) all_.push_back(std::make_shared<Channel>());
    return *std::ranges::min_element(all_, {}, [](const auto& each) { return each.use_count(); });
}

}  // namespace guozhuang::emulated_cuda
