#pragma once

#include <mpi.h>
#include <optional>
#include <string>

namespace guozhuang::wire::mpi {

/// Throws Error(wire) with MPI's own text unless `code` is MPI_SUCCESS. `operation` is the name of
/// the function that returned it.
void check(int code, const char* operation);

/// MPI's own text for an error code.
std::string error_text(int code);

/// "Open MPI v4.1.4". May be asked before MPI is initialised.
std::string library_name();

/// What the environment says about how this process was started.
struct Launcher {
    std::string evidence;  ///< "PMI_SIZE=4"
    int ranks = 1;         ///< at least so many processes were started
};
/// Empty if no launcher of parallel jobs started this process.
std::optional<Launcher> find_launcher();
/// Throws Error(unavailable) if the launcher is another MPI's: it started several processes, and
/// each sees itself alone. MPI runs.
void require_one_job();

/// Whether MPI runs in this process: initialised and not finalised.
bool is_running();

/// One use of MPI by this process, between construction and close().
///
/// Whoever initialised MPI before us also finalises it. If nobody had, we initialise it, once (MPI
/// cannot be initialised twice), and finalise it when the process exits, unless the user did so or
/// a use was given up and none closed since: then something went wrong, other ranks may not get to
/// their MPI_Finalize, and waiting for them would hang.
class Use {
public:
    /// `before_finalise` is called by the user's MPI_Finalize if a use is open then, while MPI
    /// still runs; null: nothing is.
    explicit Use(void (*before_finalise)() = nullptr);
    void close() noexcept;  ///< all ranks do
    void give_up() noexcept;
    int thread_level() const noexcept { return thread_level_; }

private:
    int thread_level_ = MPI_THREAD_SINGLE;
};

}  // namespace guozhuang::wire::mpi
