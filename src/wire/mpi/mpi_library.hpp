#pragma once

#include <guozhuang/mpi_communicator.hpp>
#include <mpi.h>
#include <optional>
#include <string>

namespace guozhuang::wire::mpi {

/// Throws Error(wire) with MPI's text unless `code` is MPI_SUCCESS. `operation` names the function
/// that returned it.
void check(int code, const char* operation);

/// Throws Error(invalid_argument) for MPI_COMM_NULL, and for a handle of another MPI.
void check_communicator(MpiCommunicator given);

/// MPI's text for an error code.
std::string error_text(int code);

/// "Open MPI v4.1.4". Works before MPI is initialised.
std::string library_name();

/// MPI_TAG_UB.
int largest_tag();

/// Whether MPI runs in this process: initialised and not finalised.
bool is_running();

/// One use of MPI by this process, from construction to close().
///
/// If MPI was initialised before, its initialiser also finalises it. Otherwise the first Use
/// initialises it (once: MPI cannot be initialised twice), and MPI is finalised when the process
/// exits, unless the user has done so, or a use was given up and none closed since: other ranks may
/// then never call MPI_Finalize, and waiting for them would hang.
class Use {
public:
    /// `before_finalise`: called by the user's MPI_Finalize if a use is open then, while MPI still
    /// runs. May be null.
    explicit Use(void (*before_finalise)() = nullptr);
    void close() noexcept;  ///< collective
    void give_up() noexcept;
    /// MPI is not finalised when the process exits: it would wait for ranks that have died.
    static void never_finalise() noexcept;
    int thread_level() const noexcept { return thread_level_; }

private:
    int thread_level_ = MPI_THREAD_SINGLE;
};

}  // namespace guozhuang::wire::mpi
