#include "wire/mpi/abort_notice.hpp"

#include <cstring>
#include <fmt/format.h>
#include <guozhuang/error.hpp>

#include "base/log.hpp"
#include "base/process.hpp"
#include "wire/mpi/mpi_library.hpp"

namespace guozhuang::wire::mpi {
namespace {

constexpr auto time_to_tell = std::chrono::milliseconds(200),
               time_to_return = std::chrono::milliseconds(2000);

/// Waits a moment until `holds()`, and returns whether it does. Uses its own doorbell, since the
/// rank's may be aborted.
template <class Holds>
bool is_true_within(const base::WaitSettings& wait, std::chrono::milliseconds time,
                    const Holds& holds) {
    const auto deadline = base::Clock::now() + time;
    bool is_so = false;
    base::Doorbell bell;
    base::wait_until(bell, wait, [&] {
        is_so = holds();
        return is_so || base::Clock::now() >= deadline;
    });
    return is_so;
}

}  // namespace

AbortNotice AbortNotice::from(const Messages::Message& message) {
    AbortNotice notice;
    if (message.bytes.size() != sizeof notice)
        throw Error(
            ErrorCode::wire,
            fmt::format("rank {} sent a notice of {} bytes", message.from, message.bytes.size()),
            {.ranks = {message.from}});
    std::memcpy(&notice, message.bytes.data(), sizeof notice);
    if (notice.code < 0 || notice.code > static_cast<std::int32_t>(last_of(ErrorCode{})))
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} sent a notice of the unknown error code {}", message.from,
                                notice.code),
                    {.ranks = {message.from}});
    return notice;
}

base::AbortCause AbortNotice::cause() const noexcept {
    return {.rank = culprit,
            .text = {text.data(), strnlen(text.data(), text.size())},
            .code = static_cast<ErrorCode>(code)};
}

OutgoingAbortNotice::OutgoingAbortNotice(const base::AbortCause& cause) noexcept {
    notice_.culprit = cause.rank;
    notice_.code = static_cast<std::int32_t>(cause.code);
    cause.text.copy(notice_.text.data(), notice_.text.size());
}

bool OutgoingAbortNotice::send(MPI_Comm communicator, int to, int tag) {
    auto& request = requests_.emplace_back(MPI_REQUEST_NULL);
    return MPI_Isend(&notice_, sizeof notice_, MPI_BYTE, to, tag, communicator, &request) ==
           MPI_SUCCESS;
}

bool OutgoingAbortNotice::has_left_soon(base::Mutex& calls, const base::WaitSettings& wait) {
    return is_true_within(wait, time_to_tell, [&] {
        if (!calls.try_lock()) return false;
        const base::Lock lock(calls, std::adopt_lock);
        return has_left();
    });
}

bool OutgoingAbortNotice::has_left() {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    return done != 0;
}

bool lock_or_end(base::Mutex& calls, const base::Doorbell& bell, const base::WaitSettings& wait,
                 bool may_end) {
    const auto locks_within = [&](std::chrono::milliseconds time) {
        return is_true_within(wait, time, [&] { return calls.try_lock(); });
    };
    const auto words = [&] {
        return base::cause_of(bell) + "; a call of MPI has not returned since";
    };
    if (locks_within(time_to_tell)) return true;
    // Others that end may end this process, too.
    if (may_end && base::is_aborted(bell)) base::log(LogLevel::warning, "{}", words());
    if (locks_within(time_to_return)) return true;
    if (may_end && base::is_aborted(bell)) base::end_process(words(), std::chrono::milliseconds(0));
    return false;
}

bool job_ends_soon(const base::Doorbell& bell, const trace::Activity& own,
                   const base::WaitSettings& wait, std::chrono::milliseconds time,
                   const std::function<void()>& look) {
    return is_true_within(wait, time, [&] {
        look();
        return base::is_aborted(bell) || own.closed.load();
    });
}

}  // namespace guozhuang::wire::mpi
