#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "trace/timeline_record.hpp"

namespace guozhuang::trace {

/// Turns records into elements of the trace event format of Chrome and Perfetto, one a line,
/// separated by commas. The process of the trace is the rank. Each thread has a row with its
/// slices; slices that no thread ran have rows by name. A request takes the first free row of its
/// process set. Not thread-safe.
class TraceText {
public:
    explicit TraceText(const TimelineOwner& owner) : owner_(owner) {}

    /// The first elements: version, rank and host, and two clocks read at the same time, with which
    /// traces of several hosts can be merged.
    std::string head() const;
    /// Elements for the records, which must be in order of time. `lost`: how many records after
    /// these were dropped; if any, open requests are closed, since their ends may be among them.
    std::string of(std::span<const TimelineRecord> records, std::uint64_t lost);

private:
    /// The row of a request, and the set of free rows to which it returns.
    struct Row {
        int number = 0;
        std::set<int>* free = nullptr;
    };
    void begin(const TimelineRecord& record);
    void end(const TimelineRecord& record);
    void close(int row, std::int64_t at_ns, bool failed);
    void open(std::string_view name, int row, std::int64_t at_ns, const TimelineFacts& facts);
    void mark_loss(std::uint64_t lost, std::int64_t at_ns);
    void slice(const TimelineRecord& record);
    int row_of(int thread);
    int row_of(const std::string& name);
    int next_row() const { return static_cast<int>(threads_.size() + named_.size()) + 1; }
    void name_row(int row, std::string_view name);
    std::string& next();  ///< where to append the next element

    const TimelineOwner owner_;
    std::string text_;
    std::map<int, int> threads_;           ///< the row of each
    std::map<std::string, int> named_;     ///< rows that belong to no thread, by name
    std::map<const void*, Row> requests_;  ///< those that have not ended
    /// Free rows of requests, by process set; "" is the world.
    std::map<std::string, std::set<int>> free_;
    int request_rows_ = 0;  ///< so far
};

}  // namespace guozhuang::trace
