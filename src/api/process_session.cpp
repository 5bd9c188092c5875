#include "api/process_session.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <guozhuang/error.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "engine/pending.hpp"
#include "wire/mpi/mpi_transport.hpp"
#include "wire/start_watch.hpp"

namespace guozhuang::api {

Process& process() {
    // Never destroyed: threads and static objects may use it until the process ends.
    static auto* const instance = new Process;
    return *instance;
}

namespace {

std::shared_ptr<Runtime> latest_runtime() {
    auto& shared = process();
    const base::Lock lock(shared.mutex);
    return shared.latest.lock();
}

/// Closes or quits a session that is open when the process exits or finalises MPI. Objects of the
/// program may still hold it.
void end_open_session(std::string_view reason, bool waits) {
    const auto runtime = base::is_forked() ? nullptr : latest_runtime();
    if (!runtime) return;
    try {
        if (waits) runtime->close(reason);
    } catch (const std::exception& error) {
        base::log(LogLevel::error, "closing the session failed: {}", error.what());
    }
    if (runtime->has_failed()) process().has_failed = true;
    runtime->quit(reason);
    runtime->stop();
}

constexpr auto shortest_limit_of_start = std::chrono::milliseconds(30'000);

/// Connects first and passes the error of an invalid environment variable to the handshake, so that
/// it fails on all ranks. If connecting itself fails, only this rank can report it.
std::shared_ptr<Runtime> connect(const SessionOptions& options) {
    wire::MpiOptions mpi{.communicator = options.mpi_communicator};
    mpi.before_finalise = [] {
        end_open_session("its process has called MPI_Finalize before the session was closed", true);
    };
    auto& config = mpi.config;
    std::string refusal;
    try {
        config = base::read_config();
    } catch (const Error& error) {
        refusal = error.what();
    }
    config.limits.shrink = options.time_to_shrink;
    // The limit for the start is at least 30 s, even if operations have a shorter limit: launching
    // all ranks takes time.
    const auto limit = config.limits.stall_error.count() > 0
                           ? std::max(config.limits.stall_error, shortest_limit_of_start)
                           : config.limits.stall_error;
    // A user's communicator does not number its ranks as the launcher does.
    if (!options.mpi_communicator) wire::refuse_child_of_rank();
    const auto launched = options.mpi_communicator ? std::nullopt : wire::find_launched_rank();
    const wire::StartWatch watch(launched, {.warn = config.limits.stall_warn, .limit = limit},
                                 wire::abort_mpi);
    auto transport = wire::connect(mpi);
    const bool is_alone = transport->size() == 1;
    try {
        return std::make_shared<Runtime>(std::move(transport), config, refusal);
    } catch (...) {
        if (!is_alone && base::code_of(std::current_exception()) != ErrorCode::configuration)
            process().has_failed = true;
        throw;
    }
}

/// Closes the session of a process that exits with status 0: most likely its owner is destroyed
/// later, or never. Does not wait for threads that construct or close a session during exit().
/// After a failed job the process stays until the other ranks have logged their errors.
void end_at_exit(int status, void*) {
    if (base::is_forked()) return;
    base::process_exits();
    // Inside the completion of an operation a wait would never end.
    const bool waits = status == 0 && !engine::Pending::is_completing();
    end_open_session("its process has called exit() before the session was closed", waits);
    if (process().has_failed)
        base::wait_for_files({}, base::time_to_unwind + base::time_for_others);
}

/// Registered once, after MPI's own handler, so that this one runs before it.
void register_end_at_exit() {
    [[maybe_unused]] static const int registered = on_exit(end_at_exit, nullptr);
}

}  // namespace

std::shared_ptr<Runtime> open_runtime(const SessionOptions& options) {
    try {
        auto runtime = connect(options);
        register_end_at_exit();
        return runtime;
    } catch (...) {
        if (process().has_failed) register_end_at_exit();
        throw;
    }
}

}  // namespace guozhuang::api
