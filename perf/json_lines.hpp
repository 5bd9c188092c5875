#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "mpi_job.hpp"

namespace guozhuang::perf {

using Json = nlohmann::ordered_json;

/// The results of a measurement for programs: one JSON object a line, appended to a file by rank 0.
/// With an empty path nothing is written.
class JsonLines {
public:
    /// Collective. Throws a Refusal if the file cannot be appended to.
    JsonLines(const MpiJob& job, const std::filesystem::path& path);

    void write(const Json& line);

private:
    std::ofstream file_;
};

/// A line that says where and how the following lines were measured. `arguments`: the command line
/// as the user wrote it.
Json run_line(const MpiJob& job, const std::string& arguments);

}  // namespace guozhuang::perf
