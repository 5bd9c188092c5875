#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <guozhuang/export.hpp>
#include <guozhuang/mpi_communicator.hpp>
#include <memory>
#include <optional>
#include <string_view>

namespace guozhuang {

class Runtime;

/// How run_ranks runs its ranks.
struct RankOptions {
    /// If set, the ranks take turns, drawn from this seed: only one runs at a time, and passes the
    /// turn on whenever it waits for an operation. The same seed gives the same order of events, so
    /// a failure can be repeated. The body must not wait for other ranks in any other way, nor make
    /// process sets.
    std::optional<std::uint64_t> turns = std::nullopt;
    /// How many hosts the ranks appear to be on, from 1 to the number of ranks. Neighbouring ranks
    /// share a host, as evenly as possible.
    int hosts = 1;
};

/// Options of a Session.
struct SessionOptions {
    /// The caller's communicator, mpi_communicator(comm): its ranks become the job. The session
    /// duplicates it, so the caller may free it after the constructor. None: MPI_COMM_WORLD.
    MpiCommunicator mpi_communicator = {};
    /// For programs that call shrink(): how long after a rank's death this process may take until
    /// it does; and how long shrink() waits for the other ranks. 0: when a rank dies, this process
    /// ends half a second later. The first session of the process decides.
    std::chrono::milliseconds time_to_shrink{0};
};

/// One rank's membership of the job, from construction to close(). Usually the first line of main.
/// Construction and close() are collective: every rank calls them. Other functions may be called on
/// any thread, even during close(): an operation is then either pending, and close() completes or
/// fails it, or it throws Error(not_initialised). No other thread may use the object while it is
/// moved or destroyed.
///
/// The first Session of a process is its default. Further ones share it, and the last to close ends
/// it; a new one may be made afterwards. A function that is given no session uses the calling
/// thread's (see run_ranks), otherwise the default. On a thread of run_ranks a new Session belongs
/// to that rank, so a trainer that makes its own session runs there unchanged.
///
/// The session initialises MPI if the program has not; MPI is then finalised when the process
/// exits. Without mpirun the job has one rank, and MPI is not used. exit(0) and MPI_Finalize close
/// a session that is open; exit() with another status leaves it. In a child of fork() everything
/// except closing and destroying throws Error(unavailable).
class GUOZHUANG_API Session {
public:
    /// Joins the job. Takes the arguments of main, as MPI programs do; they may be null. Throws
    /// Error: configuration, wire, unavailable.
    explicit Session(int* argc = nullptr, char*** argv = nullptr, SessionOptions options = {});
    /// Closes the session, and logs errors instead of throwing them. If an exception is destroying
    /// the session, leaves instead; the reason then cannot name the exception, as run() can.
    ~Session();
    Session(Session&&) noexcept;
    Session& operator=(Session&&) = delete;

    /// Ends the job together with all other ranks: waits until every rank has closed, and does this
    /// rank's part in pending operations meanwhile. Operations that a rank has not submitted before
    /// closing fail with Error(departed). A second call does nothing.
    void close();

    /// Leaves the job at once, without waiting for the other ranks; for a rank that cannot go on.
    /// Operations that all ranks have begun are finished; all others that need this rank fail with
    /// Error(departed) and the reason. Calls after close() or leave() do nothing.
    /// Session::current().leave() ends the default session for everyone in the process who shares
    /// it.
    void leave(std::string_view reason) noexcept;

    /// Goes on without the ranks that have died or left. The job ends, and this session becomes
    /// that of a new job: of the ranks that are left, numbered anew in their old order. They all
    /// call it, on one thread each, where they catch RankDied, for instance. If no rank is missing,
    /// all begin anew; a rank that is still in an operation then gets Error(aborted) out of it,
    /// even if the others have its result. Process sets, plans, optimizers, arenas and
    /// registrations of the old job then throw Error(not_initialised): make them anew. MPI is not
    /// finalised any more, since it would wait for the dead. docs/shrinking.md has the launchers
    /// that permit it, and an example.
    ///
    /// Throws Error: invalid_argument without `time_to_shrink`, or in a callback; unavailable if
    /// the ranks are threads. These change nothing. After the following the session is over, and
    /// the process ends half a second later: timeout if a rank neither calls it in time nor dies,
    /// or its message does not end; unavailable if ranks cannot be reached, so that they may be
    /// alive, and those left are less than half of all, or half without rank 0, or if others leave
    /// out this rank for that; wire. The process also ends if a rank dies while
    /// MPI makes the new job, a matter of milliseconds.
    void shrink();

    // All of these are local, never block, and throw Error(not_initialised) after close().
    int rank() const;        ///< this rank, from 0
    int size() const;        ///< ranks of the job
    int local_rank() const;  ///< its number among the ranks of this host
    int local_size() const;
    /// This host's number among the hosts, in the order of their first ranks.
    int cross_rank() const;
    int cross_size() const;       ///< hosts
    bool is_homogeneous() const;  ///< every host has the same number of ranks

    /// The calling thread's Session if it has one, otherwise the default of the process. Throws
    /// Error(not_initialised).
    static Session& current();

    /// For the library itself, which keeps the result while it uses it. Throws
    /// Error(not_initialised) after close().
    std::shared_ptr<Runtime> runtime() const;

private:
    friend GUOZHUANG_API void run_ranks(int size, const std::function<void(Session&)>& body,
                                        const RankOptions& options);
    Session(std::shared_ptr<Runtime> runtime, bool counted);
    /// Ends the membership. Returns the runtime if no other session of the process shares it.
    std::shared_ptr<Runtime> give_up();
    void note_failure(Runtime& runtime) const noexcept;
    /// Sets the runtime, and returns the previous one.
    std::shared_ptr<Runtime> replace(std::shared_ptr<Runtime> by) noexcept;

    class Membership;
    /// The runtime and its lock; null once this session has been moved from.
    std::unique_ptr<Membership> membership_;
    bool counted_ = false;   ///< as a user of the process's default session
    bool borrowed_ = false;  ///< the runtime of a thread of run_ranks, which this does not end
    int exceptions_at_start_ = 0;
};

/// The same as functions, on Session::current(). Calls of init and shutdown are counted. An extra
/// shutdown does nothing; on a thread of run_ranks neither does anything.
GUOZHUANG_API void init(int* argc = nullptr, char*** argv = nullptr);
GUOZHUANG_API void shutdown();
GUOZHUANG_API bool is_initialized() noexcept;
GUOZHUANG_API int rank();
GUOZHUANG_API int size();
GUOZHUANG_API int local_rank();
GUOZHUANG_API int local_size();
GUOZHUANG_API int cross_rank();
GUOZHUANG_API int cross_size();
GUOZHUANG_API bool is_homogeneous();

/// While one lives, the library does not end this process because another rank has died, for at
/// most `limit` from construction. For work that must be completed, such as the checkpoint that a
/// program saves when it catches RankDied. If there are several, the latest limit counts. The
/// launcher may still end the process (docs/errors.md says which launchers do, and when). Any
/// thread, with or without a session.
///
///     catch (const guozhuang::RankDied&) {
///         const guozhuang::ExitHold hold(std::chrono::minutes(5));
///         save_checkpoint();
///         throw;
///     }
class GUOZHUANG_API ExitHold {
public:
    explicit ExitHold(std::chrono::milliseconds limit = std::chrono::minutes(1)) noexcept;
    ~ExitHold();
    ExitHold(const ExitHold&) = delete;
    ExitHold& operator=(const ExitHold&) = delete;
};

/// A main that tells the other ranks why this one fails. Opens a Session, runs `body` in it, closes
/// it and returns what `body` returned. If `body` throws, logs the exception, sends it to the other
/// ranks as the reason, and returns 1.
///
///     int main(int argc, char** argv) {
///         return guozhuang::run(&argc, &argv, [](auto& session) { return train(session); });
///     }
GUOZHUANG_API int run(int* argc, char*** argv, const std::function<int(Session&)>& body);

/// Runs `body` as `size` ranks, each a thread of this process, without mpirun: for tests of
/// distributed code. Within `body` the thread's Session is its argument. Returns when all have
/// returned; rethrows the first exception, which the other ranks got as the reason.
GUOZHUANG_API void run_ranks(int size, const std::function<void(Session&)>& body,
                             const RankOptions& options = {});

}  // namespace guozhuang
