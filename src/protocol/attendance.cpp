#include "protocol/attendance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <iterator>

#include "collectives/operation_kind.hpp"

namespace guozhuang::protocol {

bool Attendance::shut_down(int rank, std::string_view reason, int culprit) {
    return shutdowns_.try_emplace(rank, Shutdown{std::string(reason), culprit}).second;
}

bool Attendance::join(int rank, const std::string& name) {
    if (joined_.contains(rank)) return false;
    if (!joined_.empty() && name != join_name_)
        throw Error(ErrorCode::wire, fmt::format("rank {} has joined as '{}', others as '{}'",
                                                 group_ranks_.world_rank(rank), name, join_name_));
    joined_.insert(rank);
    join_name_ = name;
    last_to_join_ = rank;
    return true;
}

bool Attendance::accounts_for(std::span<const int> missing) const {
    return std::ranges::all_of(
        missing, [&](int rank) { return shutdowns_.contains(rank) || joined_.contains(rank); });
}

std::optional<LogEntry> Attendance::join_entry() const {
    if (joined_.empty() || most_absent() < ranks_.size() || !accounts_for(ranks_)) return {};
    std::vector<int> missing;
    std::ranges::copy_if(ranks_, std::back_inserter(missing),
                         [&](int rank) { return !joined_.contains(rank); });
    LogEntry entry{.kind = LogEntry::Kind::join, .items = {{join_name_}}, .ranks = {last_to_join_}};
    if (!missing.empty()) {
        entry.code = ErrorCode::departed;
        entry.text = fmt::format("{}; join '{}' waits for it", shutdowns_text(missing), join_name_);
        entry.tensor = join_name_;
        entry.operation = name_of(OperationKind::join);
        entry.culprit = first_cause_of(missing);
        entry.ranks = std::move(missing);
    }
    return entry;
}

std::string Attendance::shutdowns_text(std::span<const int> ranks) const {
    std::string text;
    for (const int rank : ranks) {
        if (!shutdowns_.contains(rank))
            throw Error(ErrorCode::wire, "another rank has submitted something twice");
        text += (text.empty() ? "" : ", ") +
                group_ranks_.shutdown_text(rank, shutdowns_.at(rank).reason);
    }
    return text;
}

int Attendance::first_cause_of(std::span<const int> ranks) const {
    const auto caused =
        std::ranges::find_if(ranks, [&](int rank) { return shutdowns_.at(rank).culprit >= 0; });
    return caused == ranks.end() ? -1 : shutdowns_.at(*caused).culprit;
}

}  // namespace guozhuang::protocol
