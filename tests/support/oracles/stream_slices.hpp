#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/runner/report.hpp"

namespace guozhuang::test {

inline std::int64_t nanoseconds_now() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// Slices that bundles of a stream must have left on a rank's timeline.
struct ExpectedStreamSlices {
    std::string row;
    std::vector<std::size_t> bytes;  ///< of each bundle, in their order
    std::int64_t from_ns = 0;        ///< none begins earlier, by the monotonic clock
    std::int64_t to_ns = 0;          ///< none ends later
};

/// Says what is wrong with the slices: missing, too many, out of order, or at another time. Empty
/// if all is well.
inline std::string problems_of_stream_slices(const std::string& path,
                                             const ExpectedStreamSlices& expected) {
    using nlohmann::json;
    std::ifstream file(path);
    int row = 0;
    std::vector<std::size_t> bytes;
    auto free_from = static_cast<double>(expected.from_ns) / 1000;
    for (const json& event : json::parse(file)) {
        const auto name = event.value("name", "");
        if (name == "thread_name" && event["args"]["name"] == expected.row) row = event["tid"];
        if (name != "stream") continue;
        const double from = event["ts"], length = event["dur"];
        if (event["ph"] != "X" || event["tid"] != row) return "a slice is elsewhere";
        if (from < free_from || length < 0)
            return text_of("from ", from, " for ", length, " us, where ", free_from, " is over");
        free_from = from + length - 0.0015;  // times are written with three digits
        bytes.push_back(event["args"]["bytes"]);
    }
    if (bytes != expected.bytes) return text_of(bytes.size(), " slices, or of other bundles");
    if (free_from * 1000 > static_cast<double>(expected.to_ns)) return "the last one ends late";
    return "";
}

}  // namespace guozhuang::test
