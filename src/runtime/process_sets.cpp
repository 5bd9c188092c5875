#include "runtime/process_sets.hpp"

#include <algorithm>

namespace guozhuang {
namespace {

// Contexts have 12 bits in a tag, and the last is the handshake's.
constexpr std::uint16_t last_context = wire::job_context - 1;

}  // namespace

std::optional<ProcessSets::Opened> ProcessSets::open(const std::vector<int>& ranks) {
    const base::Lock lock(mutex_);
    Opened opened;
    opened.id.context = 1;
    for (const auto& [context, set_runtime] : sets_)
        if (context == opened.id.context) ++opened.id.context;
    if (opened.id.context > last_context) return std::nullopt;
    opened.id.epoch = ++epochs_;
    if (std::ranges::binary_search(ranks, resources_->transport->rank()))
        opened.set_runtime = std::make_shared<SetRuntime>(resources_, opened.id, ranks);
    sets_[opened.id.context] = opened.set_runtime;
    resources_->launch_order.open_set();
    if (shutdown_reason_ && opened.set_runtime)
        opened.set_runtime->engine().shut_down(*shutdown_reason_);
    return opened;
}

void ProcessSets::release(const SetId& id) {
    const base::Lock lock(mutex_);
    sets_.erase(id.context);
    resources_->launch_order.release_set();
}

std::vector<std::shared_ptr<SetRuntime>> ProcessSets::set_runtimes() const {
    const base::Lock lock(mutex_);
    std::vector<std::shared_ptr<SetRuntime>> all;
    for (const auto& [context, set_runtime] : sets_)
        if (set_runtime) all.push_back(set_runtime);
    return all;
}

void ProcessSets::shut_down(std::string_view reason) {
    {
        const base::Lock lock(mutex_);
        shutdown_reason_ = reason;
    }
    for (const auto& set_runtime : set_runtimes()) set_runtime->engine().shut_down(reason);
}

}  // namespace guozhuang
