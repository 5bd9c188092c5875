#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "trace/timeline_record.hpp"

namespace guozhuang::trace {

class TraceFile;
class TraceText;

/// From one time to another.
struct TimeSpan {
    base::Clock::time_point from, to;
};

/// Records where the time of one rank goes, as a trace that Perfetto and chrome://tracing open;
/// docs/timeline.md shows what is in it. Any thread. Recording never throws and never waits for a
/// disk.
///
/// While it is off, each call below only reads a flag. While it is on, a call notes the time and
/// copies a record under a lock held for moments. The timeline's thread writes the records as text,
/// ten times a second. If it is too slow, records are lost, and the trace says how many.
class Timeline {
public:
    Timeline();
    ~Timeline();
    Timeline(const Timeline&) = delete;
    Timeline& operator=(const Timeline&) = delete;

    /// Starts to record to rank2.json, a new file in that directory, which is created if necessary.
    /// Returns why it cannot, or nothing. If the file cannot be written later (the disk is full),
    /// logs one warning and stops.
    std::string start(const std::string& directory, const TimelineOwner& owner);
    /// Stops recording, and writes the remaining records. Does nothing if nothing is recorded.
    void stop() noexcept;
    bool on() const noexcept { return on_.load(std::memory_order_relaxed); }

    /// A request begins its first phase. Its address identifies it until end(). `facts` is called
    /// only if the timeline is on.
    template <std::invocable Facts>
    void begin(const void* request, std::string_view name, std::string_view phase,
               Facts&& facts) noexcept {
        if (on()) begin_now(request, name, phase, facts());
    }
    /// The request goes on to the next phase. Phases are literals.
    void enter(const void* request, std::string_view phase) noexcept {
        if (on()) record({.kind = TimelineRecord::Kind::enter, .request = request, .phase = phase});
    }
    /// A request that went through one phase, and is complete.
    void add_request(std::string_view name, std::string_view phase, const TimeSpan& time,
                     const TimelineFacts& facts) noexcept;
    void end(const void* request, bool failed) noexcept {
        if (on()) record({.kind = TimelineRecord::Kind::end, .failed = failed, .request = request});
    }

    /// A slice on the row of that name, for work that no thread did. The name of the slice is a
    /// literal.
    void add_slice(std::string_view row, std::string_view name, const TimeSpan& time,
                   const TimelineFacts& facts) noexcept;

private:
    friend class TimelineSlice;
    void begin_now(const void* request, std::string_view name, std::string_view phase,
                   const TimelineFacts& facts) noexcept;
    void record(TimelineRecord&& record) noexcept;
    void finish() noexcept GUOZHUANG_REQUIRES(control_mutex_);
    void write_on() noexcept;  ///< what the thread runs
    void write_out();

    std::atomic<bool> on_{false};
    base::Doorbell bell_;  ///< where the thread sleeps
    std::atomic<bool> ending_{false};

    base::Mutex records_mutex_;
    std::vector<TimelineRecord> records_ GUOZHUANG_GUARDED_BY(records_mutex_);
    std::uint64_t lost_ GUOZHUANG_GUARDED_BY(records_mutex_) = 0;

    base::Mutex control_mutex_;  ///< one start or stop at a time
    std::thread thread_ GUOZHUANG_GUARDED_BY(control_mutex_);

    // Used by the thread while there is one.
    std::string path_;
    std::vector<TimelineRecord> writing_;
    std::unique_ptr<TraceFile> file_;
    std::unique_ptr<TraceText> text_;
};

/// A slice on the row of the calling thread, for the length of a scope. The name is a literal.
class TimelineSlice {
public:
    TimelineSlice(Timeline& timeline, std::string_view name) : timeline_(timeline), name_(name) {
        if (timeline.on()) begin_ = base::Clock::now();
    }
    /// `facts` is called only if the timeline is on.
    template <std::invocable Facts>
    TimelineSlice(Timeline& timeline, std::string_view name, Facts&& facts)
        : TimelineSlice(timeline, name) {
        if (begin_) facts_ = facts();
    }
    ~TimelineSlice() {
        if (begin_) record();
    }
    /// Empty: the timeline was off.
    const std::optional<base::Clock::time_point>& begin() const noexcept { return begin_; }
    TimelineSlice(const TimelineSlice&) = delete;
    TimelineSlice& operator=(const TimelineSlice&) = delete;

private:
    void record() noexcept;

    Timeline& timeline_;
    const std::string_view name_;
    std::optional<base::Clock::time_point> begin_;
    TimelineFacts facts_;
};

}  // namespace guozhuang::trace
