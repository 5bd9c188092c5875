#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

/// The timelines that ranks have recorded, read and put together.
namespace timeline {

using Json = nlohmann::ordered_json;

/// Traces that cannot be read or do not belong together. The text names the file and a remedy.
struct BadInput : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// One rank's file.
struct Trace {
    std::string path;
    int rank = 0, ranks = 0;
    std::string host;
    std::string boot;                                ///< the same where clocks are the same
    std::int64_t monotonic_us = 0, realtime_us = 0;  ///< at one time
    std::vector<Json> events;                        ///< as they are in the file
    /// The file ends early, as that of a rank that was killed while it wrote may.
    bool cut = false;
};

/// The rank*.json of a directory, or the file itself. Throws BadInput if there is none.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& path);

/// Reads a file; what is incomplete at its end is left out. Throws BadInput if it is no timeline.
Trace read(const std::filesystem::path& path);

/// Moves all events to one clock, which is 0 when the first rank starts to record, and the traces
/// into the order of their ranks. Hosts are brought together by their wall clocks, the ranks of one
/// host have the same clock anyway. Throws BadInput for two files of one rank.
void align(std::vector<Trace>& traces);

/// Returns remarks on the traces for their reader, a line each.
std::vector<std::string> remarks(const std::vector<Trace>& traces);

}  // namespace timeline
