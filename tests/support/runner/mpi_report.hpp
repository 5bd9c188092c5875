#pragma once

#include <exception>
#include <guozhuang/training.hpp>
#include <iterator>

#include "support/runner/report.hpp"

namespace guozhuang::test {

/// Runs the case on this rank of the mpirun job, and compares with rank 0; returns this rank's
/// problems, a line for each.
inline std::string problems_here(const RankCase& body) {
    auto& session = Session::current();
    Report report;
    std::string problems;
    try {
        body(session, report);
    } catch (const std::exception& error) {
        problems += text_of("the case was left by: ", error.what(), "\n");
    }
    std::string of_rank0;
    if (session.rank() == 0)
        for (const auto hash : hashes_of(report)) of_rank0 += text_of(hash, ' ');
    broadcast_bytes(of_rank0);
    std::istringstream words(of_rank0);
    const std::vector<std::uint64_t> expected(std::istream_iterator<std::uint64_t>(words), {});
    for (const auto& problem : report.problems()) problems += problem + "\n";
    if (const auto unlike = difference(report.digests(), expected); !unlike.empty())
        problems += unlike + "\n";
    return problems;
}

}  // namespace guozhuang::test
