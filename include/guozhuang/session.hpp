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
    /// The ranks take turns, drawn from this seed: only one runs at a time, and hands on whenever
    /// it waits for an operation. The same seed gives the same order of events, so that a failure
    /// can be repeated. The body waits for other ranks in no other way and makes no process sets.
    std::optional<std::uint64_t> turns = std::nullopt;
    /// The ranks take each other for ranks of so many hosts: neighbours together, as evenly as can
    /// be. From 1 to the number of ranks.
    int hosts = 1;
};

/// What a Session may be given.
struct SessionOptions {
    /// A communicator of the caller's, whose ranks become the job: mpi_communicator(comm). It is
    /// duplicated, so it may be freed once the session is there. None: MPI_COMM_WORLD.
    MpiCommunicator mpi_communicator = {};
};

/// One rank's membership of the job, from construction to close(). RAII: usually the first line of
/// main.
///
/// The first Session of a process is its default: functions that are given none use the calling
/// thread's Session (see run_ranks), then that. Further ones share it; the last to close ends it. A
/// new one may be made afterwards. On a thread of run_ranks it is that rank's, and ends with it
/// alone: a trainer that makes its own runs there as it is. MPI is initialised if the program has
/// not done so, and then also finalised, at exit of the process. Started without mpirun the job has
/// one rank and MPI is not touched. Members may be called from any thread, at the same time as
/// close() too: an operation is then either on its way, and completed or failed by close(), or it
/// throws Error(not_initialised). Construction and close() are collective: every rank calls them.
/// Moving and destroying are for one thread, when no other uses the object. exit(0) and
/// MPI_Finalize close what is still open, exit() with another status leaves it. In a child of
/// fork() everything but closing and destroying throws Error(unavailable).
class GUOZHUANG_API Session {
public:
    /// Joins the job. The arguments of main are welcome, as in MPI programs, and may be null.
    /// Throws Error: configuration, wire, unavailable.
    explicit Session(int* argc = nullptr, char*** argv = nullptr, SessionOptions options = {});
    /// In normal flow as close(), logging instead of throwing; while an exception is on its way as
    /// leave(), with a reason that cannot say which exception it is: run() can.
    ~Session();
    Session(Session&&) noexcept;
    Session& operator=(Session&&) = delete;

    /// Leaves the job: waits until every rank has left, doing its part in what is still pending.
    /// Pending operations that a departed rank never submitted fail with Error(departed). Closing
    /// again is harmless.
    void close();

    /// Leaves the job at once, without waiting for the others: what was begun on all ranks is
    /// finished, what they still want of this rank fails with Error(departed), and the reason. For
    /// a rank that cannot go on. Closing or leaving again is harmless.
    void leave(std::string_view reason) noexcept;

    // All of these are local, never block, and throw Error(not_initialised) after close().
    int rank() const;        ///< this one's number, from 0
    int size() const;        ///< ranks of the job
    int local_rank() const;  ///< among the ranks of this host
    int local_size() const;
    /// This host's number among the hosts, in the order of their first ranks.
    int cross_rank() const;
    int cross_size() const;       ///< hosts
    bool is_homogeneous() const;  ///< every host has the same number of ranks

    /// The calling thread's Session if it has one, else the process's. Throws
    /// Error(not_initialised).
    static Session& current();

    /// For the library itself, which holds it as long as it works with it. Throws
    /// Error(not_initialised) after close().
    std::shared_ptr<Runtime> runtime() const;

private:
    friend GUOZHUANG_API void run_ranks(int size, const std::function<void(Session&)>& body,
                                        const RankOptions& options);
    Session(std::shared_ptr<Runtime> runtime, bool counted);
    /// Gives up the membership; returns the runtime, if nobody else of the process shares it.
    std::shared_ptr<Runtime> give_up();
    void note_failure(Runtime& runtime) const noexcept;
    /// Returns the runtime that was there.
    std::shared_ptr<Runtime> replace(std::shared_ptr<Runtime> by) noexcept;

    class Membership;
    /// The runtime and its lock; null once this session has been moved.
    std::unique_ptr<Membership> membership_;
    bool counted_ = false;   ///< as a user of the process's default session
    bool borrowed_ = false;  ///< from a thread of run_ranks: not this one's to end
    int exceptions_at_start_ = 0;
};

/// The same as functions on the process's default Session. init and shutdown are counted; a
/// shutdown too many is harmless.
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

/// While one lives, this process is not ended because another rank has died, though not longer than
/// `limit` from its construction: for what must be whole, such as the checkpoint that a program
/// saves when it catches RankDied. Where there are several, the latest limit counts. The launcher
/// may end the process all the same (docs/errors.md says which does, and when). Any thread, with or
/// without a session.
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

/// A main that tells the other ranks why this one fails: makes a Session, runs `body` in it, closes
/// it and gives what `body` returned. If an exception leaves `body`, it is logged, the others get
/// it as the reason of the departure, and the result is 1.
///
///     int main(int argc, char** argv) {
///         return guozhuang::run(&argc, &argv, [](auto& session) { return train(session); });
///     }
GUOZHUANG_API int run(int* argc, char*** argv, const std::function<int(Session&)>& body);

/// Runs `body` as `size` ranks, each a thread of this process, without mpirun: for tests of
/// distributed code. Inside, the thread's Session is the one passed in. Returns when all have
/// returned; rethrows the first exception, of which the other ranks were told.
GUOZHUANG_API void run_ranks(int size, const std::function<void(Session&)>& body,
                             const RankOptions& options = {});

}  // namespace guozhuang
