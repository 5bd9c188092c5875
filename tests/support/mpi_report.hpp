#pragma once

#include <exception>
#include <mpi.h>

#include "support/report.hpp"

namespace guozhuang::test {

/// Runs the case on this rank of the mpirun job, and compares with rank 0 through MPI; returns this rank's problems, a line for each.
inline std::string problems_here(const RankCase& body) {
    Report report;
    std::string problems;
    try {
        body(Session::current(), report);
    } catch (const std::exception& error) {
        problems += text_of("the case was left by: ", error.what(), "\n");
    }
    auto hashes = hashes_of(report);
    auto count = static_cast<std::uint64_t>(hashes.size());
    MPI_Bcast(&count, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    hashes.resize(count);
    MPI_Bcast(hashes.data(), static_cast<int>(count), MPI_UINT64_T, 0, MPI_COMM_WORLD);
    for (const auto& problem : report.problems()) problems += problem + "\n";
    if (const auto unlike = difference(report.digests(), hashes); !unlike.empty()) problems += unlike + "\n";
    return problems;
}

}  // namespace guozhuang::test
