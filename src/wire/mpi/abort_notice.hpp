#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mpi.h>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire::mpi {

/// Tells ranks whose doorbell the sender cannot ring that the job has ended, and why. Sent as plain
/// bytes, without the envelope of control messages, because it must still work after a control
/// channel has failed.
struct AbortNotice {
    std::int32_t culprit = -1;
    std::int32_t code = 0;  ///< an ErrorCode
    std::array<char, sizeof(base::Doorbell::cause)> text{};

    /// Throws Error(wire) if the message is not a notice, or its code is not an ErrorCode.
    static AbortNotice from(const Messages::Message& message);
    /// Valid as long as this.
    base::AbortCause cause() const noexcept;
};

/// A notice sent to several ranks. MPI uses its memory until it has left. Use it under the lock for
/// MPI calls.
class OutgoingAbortNotice {
public:
    explicit OutgoingAbortNotice(const base::AbortCause& cause) noexcept;
    /// Starts to send. False if MPI refuses.
    bool send(MPI_Comm communicator, int to, int tag);
    /// Waits a moment until the notice has left. Do not call it with `calls`, the lock for MPI
    /// calls, held.
    bool has_left_soon(base::Mutex& calls, const base::WaitSettings& wait);

private:
    bool has_left();

    AbortNotice notice_;
    std::vector<MPI_Request> requests_;
};

/// For news of the cause, after a link to another host has ended and after MPI has failed.
inline constexpr auto time_to_hear = std::chrono::milliseconds(400),
                      time_to_explain = std::chrono::milliseconds(2000);

/// Locks `calls`, the lock for MPI calls. Returns false if a thread stays in MPI with it for two
/// seconds. If the job has ended, too, that ends the process if `may_end`, since nothing that is
/// pending can be failed; the reason is logged after 200 ms, since other ranks that end may have
/// this one ended. A connection that fails while Open MPI 4.1 sends on it can leave its TCP code
/// waiting for itself, or in a loop.
bool lock_or_end(base::Mutex& calls, const base::Doorbell& bell, const base::WaitSettings& wait,
                 bool may_end) GUOZHUANG_THREAD_ANNOTATION(try_acquire_capability(true, calls));

/// Waits for that time, calling `look` again and again, and returns whether this rank's job is over
/// or its session closed by then.
bool job_ends_soon(
    const base::Doorbell& bell, const trace::Activity& own, const base::WaitSettings& wait,
    std::chrono::milliseconds time = time_to_hear, const std::function<void()>& look = [] {});

}  // namespace guozhuang::wire::mpi
