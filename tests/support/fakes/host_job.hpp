#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/fakes/thread_group.hpp"
#include "support/fakes/thread_wire.hpp"
#include "support/runner/sanitizer.hpp"

/// Ranks on several hosts, as threads.
namespace guozhuang::test {

inline constexpr std::size_t room_bytes = std::size_t{32} << 10;

/// How many ranks are on each host; they have consecutive numbers.
struct Job {
    std::vector<int> locals;
    int hosts() const { return static_cast<int>(locals.size()); }
    int ranks() const { return std::accumulate(locals.begin(), locals.end(), 0); }
    int columns() const {
        const int least = std::ranges::min(locals);
        return std::ranges::max(locals) / least * least;
    }
    bool is_even() const { return std::ranges::min(locals) * hosts() == ranks(); }
    std::string name() const { return fmt::format("{} ranks", fmt::join(locals, "+")); }
};
inline const std::vector<Job> some_jobs = {{{1, 1}}, {{2, 2, 2}}, {{5, 3}}, {{1, 2, 2, 1}}};
inline const std::vector<Job> all_jobs = {
    {{1, 1}},    {{2, 2}},       {{3, 3}},          {{4, 4}},       {{1, 1, 1}}, {{2, 2, 2}},
    {{3, 3, 3}}, {{2, 2, 2, 2}}, {{2, 2, 2, 2, 2}}, {{2, 1}},       {{1, 3}},    {{5, 3}},
    {{3, 2, 2}}, {{3, 1, 2}},    {{1, 1, 4}},       {{1, 2, 2, 1}}, {{2, 5, 3}}};
inline const auto& jobs = under_sanitizer ? some_jobs : all_jobs;

/// The channels of a rank: within its host, across hosts for each of its columns, and to all ranks.
struct Group {
    ThreadGroup local;
    std::vector<ThreadWire> across;
    ThreadWire all;
    int locals;  ///< ranks of its host

    std::size_t messages_across() const {
        std::size_t messages = 0;
        for (const auto& wire : across) messages += wire.messages();
        return messages;
    }
    std::size_t bytes_across() const {
        std::size_t bytes = 0;
        for (const auto& wire : across) bytes += wire.bytes();
        return bytes;
    }
};

/// Runs body(rank, group) on a thread per rank; returns the groups, for their counts.
template <class Body>
std::vector<Group> run_job(const Job& job, const Body& body) {
    std::deque<Stages> hosts;
    std::deque<Switchboard> columns;
    for (int column = 0; column < job.columns(); ++column) columns.emplace_back(job.hosts());
    Switchboard board(job.ranks());
    std::vector<Group> all_groups;
    for (int host = 0; host < job.hosts(); ++host) {
        const int locals = job.locals[static_cast<std::size_t>(host)];
        hosts.emplace_back(locals, room_bytes);
        for (int local = 0; local < locals; ++local) {
            auto& group = all_groups.emplace_back(Group{
                {hosts.back(), local}, {}, {board, static_cast<int>(all_groups.size())}, locals});
            for (int column = local; column < job.columns(); column += locals)
                group.across.emplace_back(columns[static_cast<std::size_t>(column)], host);
            if (group.across.empty()) group.across.emplace_back(columns.front(), host);
        }
    }
    run_ranks(board, [&](int rank) {
        try {
            body(rank, all_groups[static_cast<std::size_t>(rank)]);
        } catch (...) {
            for (auto& column : columns) column.fail();
            throw;
        }
    });
    for (auto& column : columns)
        if (column.unmatched() != 0) throw std::runtime_error("messages left over");
    return all_groups;
}

}  // namespace guozhuang::test
