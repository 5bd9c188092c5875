#include "trace/timeline.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "trace/trace_file.hpp"
#include "trace/trace_text.hpp"

namespace guozhuang::trace {
namespace {

constexpr auto write_every = std::chrono::milliseconds(100);
constexpr base::WaitSettings rhythm{
    .spin = std::chrono::microseconds(0), .sleep_first = write_every, .sleep_limit = write_every};
constexpr std::size_t most_records = 32'768;  // between two writes

std::int64_t nanoseconds(base::Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int this_thread() noexcept {
    thread_local const int number = static_cast<int>(syscall(SYS_gettid));
    return number;
}

}  // namespace

Timeline::Timeline() = default;

Timeline::~Timeline() {
    stop();
}

std::string Timeline::start(const std::string& directory, const TimelineOwner& owner) try {
    const base::Lock lock(control_mutex_);
    if (on()) return fmt::format("'{}' is being recorded", path_);
    finish();
    std::error_code ignored;  // only the existence of the directory matters
    std::filesystem::create_directories(directory, ignored);
    path_ = fmt::format("{}/rank{}.json", directory, owner.rank);
    file_ = std::make_unique<TraceFile>(path_);
    text_ = std::make_unique<TraceText>(owner);
    file_->append(text_->head());
    {
        const base::Lock records(records_mutex_);
        records_.reserve(most_records);
        lost_ = 0;
    }
    ending_ = false;
    thread_ = base::start_thread("gz-timeline", [this] { write_on(); });
    on_ = true;
    return {};
} catch (const std::system_error& error) {
    return error.code().message();
} catch (const std::bad_alloc&) {
    return base::describe(std::current_exception());
}

void Timeline::stop() noexcept {
    const base::Lock lock(control_mutex_);
    finish();
}

void Timeline::finish() noexcept {
    if (!thread_.joinable()) return;
    on_ = false;
    ending_ = true;
    ring(bell_);
    base::join(thread_);
    file_.reset();
    const base::Lock lock(records_mutex_);
    records_ = {};  // without capacity, so later records are dropped
}

void Timeline::begin_now(const void* request, std::string_view name, std::string_view phase,
                         const TimelineFacts& facts) noexcept try {
    record({.kind = TimelineRecord::Kind::begin,
            .request = request,
            .name = std::string(name),
            .phase = phase,
            .facts = facts});
} catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // Without memory the request goes unrecorded.
}

void Timeline::add_request(std::string_view name, std::string_view phase, const TimeSpan& time,
                           const TimelineFacts& facts) noexcept try {
    if (!on()) return;
    record({.kind = TimelineRecord::Kind::begin,
            .request = &time,
            .at_ns = nanoseconds(time.from),
            .name = std::string(name),
            .phase = phase,
            .facts = facts});
    record({.kind = TimelineRecord::Kind::end, .request = &time, .at_ns = nanoseconds(time.to)});
} catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // Without memory it goes unrecorded.
}

void Timeline::add_slice(std::string_view row, std::string_view name, const TimeSpan& time,
                         const TimelineFacts& facts) noexcept try {
    if (!on()) return;
    record({.from_ns = nanoseconds(time.from),
            .at_ns = nanoseconds(time.to),
            .name = std::string(row),
            .phase = name,
            .facts = facts});
} catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // Without memory it goes unrecorded.
}

/// Notes the time, if there is none, under the lock, so that records are in the order of their
/// times.
void Timeline::record(TimelineRecord&& record) noexcept {
    bool hurry = false;
    {
        const base::Lock lock(records_mutex_);
        if (records_.size() == records_.capacity()) {
            ++lost_;
            return;
        }
        if (record.at_ns == 0) record.at_ns = nanoseconds(base::Clock::now());
        records_.push_back(std::move(record));
        hurry = records_.size() == records_.capacity() / 2;
    }
    if (hurry) ring(bell_);
}

void Timeline::write_on() noexcept {
    try {
        for (base::WaitLoop wait_loop(bell_, rhythm); !ending_; wait_loop.pause()) write_out();
        write_out();
    } catch (const std::exception& error) {
        on_ = false;
        base::log(LogLevel::warning, "the timeline '{}' ends early: {}", path_, error.what());
    }
}

void Timeline::write_out() {
    writing_.clear();
    writing_.reserve(most_records);
    std::uint64_t lost = 0;
    {
        const base::Lock lock(records_mutex_);
        writing_.swap(records_);
        lost = std::exchange(lost_, 0);
    }
    if (const auto text = text_->of(writing_, lost); !text.empty()) file_->append(text);
}

void TimelineSlice::record() noexcept {
    if (timeline_.on())
        timeline_.record({.thread = this_thread(),
                          .from_ns = nanoseconds(*begin_),
                          .phase = name_,
                          .facts = facts_});
}

}  // namespace guozhuang::trace
