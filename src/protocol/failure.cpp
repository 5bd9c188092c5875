#include "protocol/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <iterator>
#include <ranges>
#include <span>
#include <utility>

#include "base/error_text.hpp"

namespace guozhuang::protocol {
namespace {

using Groups = std::vector<SubmissionGroup>;

/// By the lowest rank of each.
Groups sorted(Groups groups) {
    std::ranges::sort(groups, {}, [](const SubmissionGroup& group) { return group.ranks.front(); });
    return groups;
}

std::vector<int> ranks_of(std::span<const SubmissionGroup> groups) {
    std::vector<int> ranks;
    for (const auto& group : groups)
        ranks.insert(ranks.end(), group.ranks.begin(), group.ranks.end());
    return ranks;
}

/// For users: with world ranks.
Groups as_named(Groups groups, const GroupRanks& group_ranks) {
    for (auto& group : groups) group.ranks = group_ranks.world_ranks(group.ranks);
    return groups;
}

/// The ranks of all groups but the first are at fault.
void set_mismatch(LogEntry& failure, const Tally& tally, const GroupRanks& group_ranks) {
    const auto groups = sorted(tally.groups);
    failure.code = ErrorCode::mismatch;
    failure.ranks = ranks_of(std::span(groups).subspan(1));
    failure.text = describe_mismatch(failure.items.front().name.text(),
                                     as_named(groups, group_ranks), failure.tensor);
}

/// The groups that have discarded it are at fault.
void set_discard(LogEntry& failure, Groups discarding, const GroupRanks& group_ranks) {
    discarding = sorted(std::move(discarding));
    failure.code = ErrorCode::discarded;
    failure.ranks = ranks_of(discarding);
    failure.text = describe_discard(failure.items.front().name.text(),
                                    as_named(std::move(discarding), group_ranks));
}

/// Why an operation needs the ranks that have joined; empty if it does not.
std::string refusal_without(std::span<const int> joined, const Description& description,
                            const GroupRanks& group_ranks) {
    if (joined.empty()) return {};
    const auto& operation = row_of(description.operation);
    if (operation.has_root) {
        const auto root = group_ranks.group_rank_of(description.root);
        if (root && std::ranges::binary_search(joined, *root))
            return fmt::format("its root, rank {}, has joined", description.root);
    }
    if (!operation.needs_all_ranks) return {};
    return fmt::format(
        "it needs every rank, and {} joined",
        joined.size() == 1
            ? fmt::format("rank {} has", group_ranks.world_rank(joined.front()))
            : fmt::format("{} have", base::list_ranks(group_ranks.world_ranks(joined))));
}

}  // namespace

std::optional<LogEntry> failure_of(const Name& name, const Tally& tally,
                                   std::span<const int> missing, const Attendance& attendance,
                                   const GroupRanks& group_ranks) {
    const auto& groups = tally.groups;
    const auto& description = *groups.front().description;
    std::vector<int> shut_down;
    std::ranges::copy_if(missing, std::back_inserter(shut_down),
                         [&](int rank) { return !attendance.has_joined(rank); });
    Groups discarding;
    std::ranges::copy_if(groups, std::back_inserter(discarding), [](const SubmissionGroup& group) {
        return !group.description->discarded.empty();
    });
    const auto refusal = refusal_without(missing, description, group_ranks);
    if (shut_down.empty() && discarding.empty() && groups.size() == 1 && refusal.empty())
        return std::nullopt;

    LogEntry failure{.kind = LogEntry::Kind::fail, .items = {{name}}, .tensor = name.text()};
    failure.operation = name_of(description.operation);
    if (!shut_down.empty()) {
        failure.code = ErrorCode::departed;
        failure.text = fmt::format("{}; {} {} waits for it", attendance.shutdowns_text(shut_down),
                                   failure.operation, base::quote(name.text()));
        failure.culprit = attendance.first_cause_of(shut_down);
        failure.ranks = std::move(shut_down);
    } else if (!discarding.empty()) {
        set_discard(failure, std::move(discarding), group_ranks);
    } else if (groups.size() > 1) {
        set_mismatch(failure, tally, group_ranks);
    } else {
        failure.code = ErrorCode::departed;
        failure.text =
            fmt::format("{} {}: {}", failure.operation, base::quote(name.text()), refusal);
        failure.ranks.assign(missing.begin(), missing.end());
    }
    return failure;
}

}  // namespace guozhuang::protocol
