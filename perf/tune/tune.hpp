#pragma once

#include <filesystem>

#include "json_lines.hpp"
#include "mpi_job.hpp"

namespace guozhuang::perf {

struct TuneOptions {
    std::filesystem::path output;  ///< for GUOZHUANG_TUNE_FILE
    int rounds = 20;
};

/// Measures the library with other values of its tunable variables than the defaults, in turns, and
/// writes those that are clearly faster on this machine with this number of ranks. Collective. No
/// operation of a session may be pending. Throws a Refusal if the file cannot be written.
void tune(const MpiJob& job, const TuneOptions& options, JsonLines& lines);

}  // namespace guozhuang::perf
