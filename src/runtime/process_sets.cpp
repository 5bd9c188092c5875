#include "runtime/process_sets.hpp"

#include <algorithm>

namespace guozhuang {
namespace {

// Contexts have 12 bits in a tag, and the last is the handshake's.
constexpr std::uint16_t last_context = 0xffe;

}  // namespace

std::optional<ProcessSets::Opened> ProcessSets::open(const std::vector<int>& ranks) {
    const base::Lock lock(mutex_);
    Opened opened;
    opened.id.context = 1;
    for (const auto& [context, member] : sets_)
        if (context == opened.id.context) ++opened.id.context;
    if (opened.id.context > last_context) return std::nullopt;
    opened.id.epoch = ++epochs_;
    if (std::ranges::binary_search(ranks, shared_->transport->rank()))
        opened.member = std::make_shared<SetMember>(shared_, opened.id, ranks);
    sets_[opened.id.context] = opened.member;
    if (departure_ && opened.member) opened.member->engine().depart(*departure_);
    return opened;
}

void ProcessSets::release(const SetId& id) {
    const base::Lock lock(mutex_);
    sets_.erase(id.context);
}

std::vector<std::shared_ptr<SetMember>> ProcessSets::members() const {
    const base::Lock lock(mutex_);
    std::vector<std::shared_ptr<SetMember>> members;
    for (const auto& [context, member] : sets_)
        if (member) members.push_back(member);
    return members;
}

void ProcessSets::depart(std::string_view reason) {
    {
        const base::Lock lock(mutex_);
        departure_ = reason;
    }
    for (const auto& member : members()) member->engine().depart(reason);
}

}  // namespace guozhuang
