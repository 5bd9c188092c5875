// Calls of C that do more than one of C++ run out of memory at each allocation in turn, and are
// made again: the results are right, or the job has ended on all ranks for the lack of memory.
#include <guozhuang.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include "unit/scarce_memory.hpp"

namespace {

using guozhuang::test::Lack;
using guozhuang::test::Scarcity;

constexpr int ranks = 2, never = 1 << 30;
constexpr const char* long_name = "a text that no string keeps in itself";

/// The work of one rank, and how it ended.
struct Rank {
    int allocations = never;
    bool struck = false;
    std::string problem;
};

bool speaks_of_memory() {
    return std::strstr(gz_last_error()->message, "memory") != nullptr;
}

/// Makes a call, and again when it has run out of memory. False if the job is over.
template <class Call>
bool persist(Rank& rank, const char* what, const Call& call) {
    auto status = call();
    Scarcity::lift();
    if (status == GZ_ERROR_OUT_OF_MEMORY) status = call();
    if (status != GZ_OK && !speaks_of_memory())
        rank.problem = std::string(what) + ": " + gz_last_error()->message;
    return status == GZ_OK;
}

bool broadcast(Rank& rank, int own) {
    GzBytes* bytes = nullptr;
    const std::string given = own == 0 ? long_name : "";
    if (!persist(rank, "gz_broadcast_bytes", [&] {
            return gz_broadcast_bytes(given.data(), given.size(), 0, nullptr, &bytes);
        }))
        return false;
    const void* data = nullptr;
    size_t count = 0;
    gz_bytes_get(bytes, 0, &data, &count);
    if (std::string(static_cast<const char*>(data), count) != long_name)
        rank.problem = "other bytes";
    gz_bytes_free(bytes);
    return true;
}

bool average(Rank& rank, int own) {
    const std::array<const char*, 1> keys{long_name};
    std::array<double, 1> values{1.0 + 2 * own};
    const bool has_succeeded = persist(rank, "gz_average_metrics", [&] {
        return gz_average_metrics(keys.data(), values.data(), keys.size(), nullptr);
    });
    if (has_succeeded && values[0] != 2) rank.problem = "another mean";
    return has_succeeded;
}

/// A call, and what a program does next.
template <bool (*call)(Rank&, int)>
int body(void* context) {
    int own = 0;
    gz_rank(&own);
    auto& rank =
        (*static_cast<std::array<Rank, ranks>*>(context)).at(static_cast<std::size_t>(own));
    bool goes_on = gz_barrier(nullptr) == GZ_OK;
    {
        const Scarcity scarcity(rank.allocations, Lack::one);
        goes_on = goes_on && call(rank, own);
        rank.struck = Scarcity::has_struck();
    }
    float number = 1;
    const std::int64_t one = 1;
    const GzTensor tensor{&number, &one, nullptr, GZ_F32, 1, {GZ_HOST, 0}};
    goes_on = goes_on &&
              persist(rank, "gz_allreduce", [&] { return gz_allreduce(&tensor, GZ_SUM, nullptr); });
    if (goes_on && number != ranks) rank.problem = "another sum";
    if (!goes_on) gz_leave("no memory");
    return 0;
}

/// Whether the job goes on, or its error speaks of memory, whichever allocation of the last rank
/// fails.
template <bool (*call)(Rank&, int)>
bool survives(const char* name) {
    for (int allocation = 0;; ++allocation) {
        std::array<Rank, ranks> each;
        each.back().allocations = allocation;
        gz_run_ranks(ranks, body<call>, &each, nullptr);
        for (const auto& rank : each) {
            if (rank.problem.empty()) continue;
            std::printf("%s, allocation %d: %s\n", name, allocation, rank.problem.c_str());
            return false;
        }
        if (!each.back().struck) return allocation > 3;
    }
}

/// A thread's first error has room where there is no memory at all.
bool has_room_for_an_error() {
    GzStatus status = GZ_OK;
    std::thread([&] {
        const Scarcity scarcity(0);
        status = gz_allreduce(nullptr, GZ_SUM, nullptr);
        if (!speaks_of_memory()) status = GZ_OK;
    }).join();
    return status == GZ_ERROR_OUT_OF_MEMORY;
}

}  // namespace

int main() {
    const bool fine = has_room_for_an_error() && survives<broadcast>("gz_broadcast_bytes") &&
                      survives<average>("gz_average_metrics");
    std::printf("%s\n", fine ? "fine" : "failed");
    return fine ? 0 : 1;
}
