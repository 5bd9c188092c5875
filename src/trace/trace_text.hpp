#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "trace/timeline_record.hpp"

namespace guozhuang::trace {

/// Turns records into elements of the trace event format of Chrome and Perfetto, one a line, with a
/// comma behind all but the last. The process of the trace is the rank. It has a row for each
/// thread, with slices; and rows for the requests of each process set, of which each takes the
/// first one that is free. Not thread-safe.
class TraceText {
public:
    explicit TraceText(const TimelineOwner& owner) : owner_(owner) {}

    /// What stands first: who wrote this and where, and two clocks at one time, so that the traces
    /// of several hosts can be put together.
    std::string head() const;
    /// In the order of their times. `lost`: how many came after these and were not kept, which
    /// leaves us without their ends.
    std::string of(std::span<const TimelineRecord> records, std::uint64_t lost);

private:
    /// A row that a request is on, and where it goes when that has ended.
    struct Row {
        int number = 0;
        std::set<int>* free = nullptr;
    };
    void begin(const TimelineRecord& record);
    void end(const TimelineRecord& record);
    void close(int row, std::int64_t at_ns, bool failed);
    void open(std::string_view name, int row, std::int64_t at_ns, const TimelineFacts& facts);
    void mark_loss(std::uint64_t lost, std::int64_t at_ns);
    int row_of(int thread);
    void name_row(int row, std::string_view name);
    std::string& next();  ///< where the next element is to be appended

    const TimelineOwner owner_;
    std::string text_;
    std::map<int, int> threads_;           ///< row of each
    std::map<const void*, Row> requests_;  ///< of those that are on their way
    /// Rows of requests that are free, by process set; "": the world.
    std::map<std::string, std::set<int>> free_;
    int request_rows_ = 0;  ///< so far
};

}  // namespace guozhuang::trace
