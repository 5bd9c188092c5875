#include <guozhuang/session.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <guozhuang/mpi_communicator.hpp>

#include "border.hpp"

struct GzExitHold {
    guozhuang::ExitHold hold;
};

namespace guozhuang::c {
namespace {

template <class T>
MpiCommunicator communicator_at(const void* address) {
    T communicator;
    std::memcpy(&communicator, address, sizeof communicator);
    return MpiCommunicator::of(communicator);
}

/// An MPI_Comm is a pointer or an int.
MpiCommunicator communicator_of(const GzInitOptions& options) {
    if (options.mpi_communicator == nullptr) return {};
    switch (options.mpi_communicator_bytes) {
        case sizeof(int): return communicator_at<int>(options.mpi_communicator);
        case sizeof(void*): return communicator_at<void*>(options.mpi_communicator);
        default:
            refuse("an MPI_Comm of " + std::to_string(options.mpi_communicator_bytes) +
                   " bytes; mpi_communicator_bytes must be sizeof(MPI_Comm)");
    }
}

}  // namespace
}  // namespace guozhuang::c

using namespace guozhuang::c;  // NOLINT(google-build-using-namespace)
namespace gz = guozhuang;

GzStatus gz_init(const GzInitOptions* options) {
    return guarded([&] {
        const auto given = options_or(options, GzInitOptions GZ_INIT_OPTIONS_INIT);
        // Opens the session with what init() does not take, and shares it until that has counted.
        const gz::Session session(
            nullptr, nullptr,
            {.mpi_communicator = communicator_of(given),
             .time_to_shrink = std::chrono::milliseconds(given.time_to_shrink_ms)});
        gz::init();
    });
}
GzStatus gz_shrink() {
    return guarded([] { gz::Session::current().shrink(); });
}
GzStatus gz_shutdown() {
    return guarded([] { gz::shutdown(); });
}
GzStatus gz_leave(const char* reason) {
    return guarded([&] { gz::Session::current().leave(text_of(reason)); });
}

int gz_is_initialized() {
    return gz::is_initialized() ? 1 : 0;
}
GzStatus gz_rank(int* rank) {
    return put(rank, [] { return gz::rank(); });
}
GzStatus gz_size(int* size) {
    return put(size, [] { return gz::size(); });
}
GzStatus gz_local_rank(int* rank) {
    return put(rank, [] { return gz::local_rank(); });
}
GzStatus gz_local_size(int* size) {
    return put(size, [] { return gz::local_size(); });
}
GzStatus gz_cross_rank(int* rank) {
    return put(rank, [] { return gz::cross_rank(); });
}
GzStatus gz_cross_size(int* size) {
    return put(size, [] { return gz::cross_size(); });
}
GzStatus gz_is_homogeneous(int* homogeneous) {
    return put(homogeneous, [] { return gz::is_homogeneous() ? 1 : 0; });
}

GzStatus gz_run_ranks(int ranks, int (*body)(void* context), void* context,
                      const GzRankOptions* options) {
    return guarded([&] {
        required(body, "the body");
        const auto given = options_or(options, GzRankOptions GZ_RANK_OPTIONS_INIT);
        gz::RankOptions with{.hosts = given.hosts};
        if (given.take_turns != 0) with.turns = given.turns;
        gz::run_ranks(
            ranks, [&](gz::Session&) { call_back(body, context); }, with);
    });
}

GzStatus gz_exit_hold_create(int64_t limit_ms, GzExitHold** hold) {
    return create(
        hold, [&] { return new GzExitHold{gz::ExitHold(std::chrono::milliseconds(limit_ms))}; });
}
void gz_exit_hold_free(GzExitHold* hold) {
    delete hold;
}

GzStatus gz_process_set_create(const int* ranks, size_t rank_count, GzProcessSet** set) {
    return create(set, [&] {
        const auto given = list_of(ranks, rank_count, "the ranks");
        return new GzProcessSet{gz::ProcessSet::create({given.begin(), given.end()})};
    });
}
GzStatus gz_process_set_remove(GzProcessSet* set) {
    return guarded([&] { required(set, "the process set").set.remove(); });
}
void gz_process_set_free(GzProcessSet* set) {
    delete set;
}
GzStatus gz_process_set_rank(const GzProcessSet* set, int* rank) {
    return put(rank, [&] { return set_of(set).rank(); });
}
GzStatus gz_process_set_size(const GzProcessSet* set, int* size) {
    return put(size, [&] { return set_of(set).size(); });
}
GzStatus gz_process_set_contains(const GzProcessSet* set, int rank, int* contains) {
    return put(contains, [&] { return set_of(set).contains(rank) ? 1 : 0; });
}
GzStatus gz_process_set_ranks(const GzProcessSet* set, int* ranks, size_t capacity) {
    return guarded([&] {
        const auto all = set_of(set).ranks();
        const auto where = list_of(ranks, capacity, "where the ranks go");
        if (where.size() < all.size())
            refuse("there is room for " + std::to_string(where.size()) + " ranks, and there are " +
                   std::to_string(all.size()));
        std::ranges::copy(all, where.begin());
    });
}
