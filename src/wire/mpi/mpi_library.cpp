#include "wire/mpi/mpi_library.hpp"

#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <guozhuang/error.hpp>

#include "base/config.hpp"
#include "base/parse.hpp"
#include "base/process.hpp"
#include "wire/mpi/mpi_transport.hpp"

namespace guozhuang::wire::mpi {
namespace {

// One for the process, as MPI is.
std::atomic<int> open_uses{0};
std::atomic<bool> gave_up{false};
std::atomic<bool> ranks_are_missing{false};  ///< they will never call MPI_Finalize
std::atomic<void (*)()> end_uses{nullptr};

void finalise_at_exit() {
    if (!base::is_forked() && is_running() && open_uses.load() == 0 && !gave_up.load() &&
        !ranks_are_missing.load())
        MPI_Finalize();
}

/// MPI_Finalize deletes the attributes of MPI_COMM_SELF before it does anything else (MPI 3.1,
/// 8.7.1), and so calls this: the last moment at which a transport can be closed.
int finalise_begins(MPI_Comm, int, void*, void*) {
    const auto end = end_uses.load();
    if (open_uses.load() > 0 && end != nullptr) end();
    return MPI_SUCCESS;
}

void watch_finalise() {
    int key = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalise_begins, &key, nullptr),
          "MPI_Comm_create_keyval");
    check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
    check(MPI_Comm_free_keyval(&key), "MPI_Comm_free_keyval");
}

int initialise() {
    int level = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        throw Error(ErrorCode::wire, "MPI_Init_thread failed");
    std::atexit(finalise_at_exit);
    return level;
}

const char* thread_level_name() {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    switch (level) {
        case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
        case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
        case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
        default: return "MPI_THREAD_SINGLE";
    }
}

}  // namespace

std::string error_text(int code) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    return {text, static_cast<std::size_t>(length)};
}

void check(int code, const char* operation) {
    if (code != MPI_SUCCESS)
        throw Error(ErrorCode::wire, fmt::format("{} failed: {}", operation, error_text(code)));
}

void check_communicator(MpiCommunicator given) {
    if (given && given.size() != sizeof(MPI_Comm))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("Session: its communicator is a handle of {} bytes, and those of "
                                "this MPI have {}: it is not one of this MPI's",
                                given.size(), sizeof(MPI_Comm)));
    if (given && given.as<MPI_Comm>() == MPI_COMM_NULL)
        throw Error(ErrorCode::invalid_argument,
                    "Session: its communicator is MPI_COMM_NULL, which has no ranks; a rank that "
                    "is not to take part makes no session");
}

std::string library_name() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "MPI";
    const std::string name(text, static_cast<std::size_t>(length));
    return name.substr(0, name.find_first_of(",\n"));
}

int largest_tag() {
    void* bound = nullptr;
    int known = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &known), "MPI_Comm_get_attr");
    return known != 0 ? *static_cast<int*>(bound) : 32767;  // the least that MPI guarantees
}

bool is_running() {
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised != 0 && finalised == 0;
}

Use::Use(void (*before_finalise)()) {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised != 0)
        throw Error(ErrorCode::unavailable,
                    "MPI has been finalised in this process and cannot be started again");
    if (is_running()) {
        check(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
    } else {
        thread_level_ = initialise();
    }
    if (before_finalise != nullptr && end_uses.exchange(before_finalise) == nullptr)
        watch_finalise();
    open_uses.fetch_add(1);
}

void Use::close() noexcept {
    open_uses.fetch_sub(1);
    gave_up = false;
}

void Use::never_finalise() noexcept {
    ranks_are_missing = true;
}

void Use::give_up() noexcept {
    open_uses.fetch_sub(1);
    gave_up = true;
}

}  // namespace guozhuang::wire::mpi

std::string guozhuang::wire::describe_mpi() {
    return mpi::library_name() + ", " +
           (mpi::is_running() ? mpi::thread_level_name() : "not running in this process");
}

void guozhuang::wire::abort_mpi() {
    if (mpi::is_running()) MPI_Abort(MPI_COMM_WORLD, 1);
}
