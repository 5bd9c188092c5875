#pragma once

#include <array>
#include <cstdint>
#include <mpi.h>
#include <vector>

#include "base/mutex.hpp"
#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire::mpi {

/// What one host tells another of the end of the job.
struct AbortNotice {
    std::int32_t culprit = -1;
    std::int32_t code = 0;  ///< an ErrorCode
    std::array<char, sizeof(base::Doorbell::cause)> text{};

    /// Throws Error(wire) if the message is none.
    static AbortNotice from(const Messages::Message& message);
    /// Valid as long as this.
    base::AbortCause cause() const noexcept;
};

/// One that may be on its way to several ranks; until it has left, its memory is MPI's. To be used
/// under the lock that is around every call of MPI.
class OutgoingAbortNotice {
public:
    explicit OutgoingAbortNotice(const base::AbortCause& cause) noexcept;
    /// False if MPI refuses.
    bool send(MPI_Comm communicator, int to, int tag);
    /// Waits a moment for that. Not under that lock, which is `calls`.
    bool has_left_soon(base::Mutex& calls, const base::WaitSettings& wait);

private:
    bool has_left();

    AbortNotice notice_;
    std::vector<MPI_Request> requests_;
};

/// Whether the job of this rank is over within a moment, or its session closed. A rank whose link
/// to another host has ended asks, since ranks of that host may say more about the death.
bool job_ends_soon(const base::Doorbell& bell, const trace::Activity& own,
                   const base::WaitSettings& wait);

}  // namespace guozhuang::wire::mpi
