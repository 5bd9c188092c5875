#include "engine/execution.hpp"

#include <guozhuang/error.hpp>

namespace guozhuang::engine {

Bundle bundle_of(const LogEntry& entry, std::span<const std::shared_ptr<Pending>> requests, const Members& members) {
    const auto& description = requests.front()->request().description;
    Bundle bundle{.operation = description.operation,
                  .op = description.op,
                  .prescale = description.prescale,
                  .postscale = description.postscale,
                  .root = members.position_of(description.root).value_or(0),  // a broadcast's root is a member: its callers have checked
                  .device = description.device,
                  .policy = entry.policy,
                  .pieces = {}};
    for (const auto& pending : requests) {
        const auto& request = pending->request();
        for (std::size_t i = 0; i < request.tensors.size(); ++i)
            bundle.pieces.push_back({.tensor = request.tensors[i], .splits = request.splits, .result = &pending->result(i)});
    }
    return bundle;
}

std::exception_ptr error_of(const LogEntry& entry, const Members& members) {
    return std::make_exception_ptr(
        Error(entry.code, entry.text, {.tensor = entry.tensor, .operation = entry.operation, .ranks = members.world_ranks(entry.ranks)}));
}

}  // namespace guozhuang::engine
