// NCCL's functions, as far as the library uses them.

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "support/emulated_nccl/calls.hpp"
#include "support/emulated_nccl/communicator.hpp"
#include "support/emulated_nccl/configuration.hpp"

namespace guozhuang::emulated_nccl {
namespace {

/// Handles are never used twice, so that a dead one is known.
class Communicators {
public:
    ncclComm_t add(std::shared_ptr<Communicator> made) {
        const std::lock_guard lock(mutex_);
        next_ += alignof(std::max_align_t);
        all_[next_] = std::move(made);
        return reinterpret_cast<ncclComm_t>(next_);  // NOLINT(performance-no-int-to-ptr)
    }
    std::shared_ptr<Communicator> find(ncclComm_t handle) {
        const std::lock_guard lock(mutex_);
        const auto found = all_.find(reinterpret_cast<std::uintptr_t>(handle));
        if (found == all_.end()) break_rule("a communicator is used that is none, or has ended");
        return found->second;
    }
    void remove(ncclComm_t handle) {
        const std::lock_guard lock(mutex_);
        all_.erase(reinterpret_cast<std::uintptr_t>(handle));
    }

private:
    std::mutex mutex_;
    std::uintptr_t next_ = 0x61000000;
    std::map<std::uintptr_t, std::shared_ptr<Communicator>> all_;
};

Communicators& communicators() {
    static auto& all = *new Communicators;
    return all;
}

/// The calling thread's group.
struct Group {
    int depth = 0;
    std::set<std::shared_ptr<Communicator>> communicators;
};
thread_local Group group;

ncclResult_t end_group() {
    if (group.depth == 0) throw Refusal{ncclInvalidUsage, "no group has begun"};
    if (--group.depth > 0) return ncclSuccess;
    const auto grouped = std::exchange(group.communicators, {});
    for (const auto& each : grouped) {
        const Communicator::Visit visit(*each);
        each->end_group();
    }
    return grouped.empty() ? ncclSuccess : ncclInProgress;
}

/// As NCCL does when the end of a group fails.
void drop_group() {
    for (const auto& each : std::exchange(group, {}).communicators) {
        const Communicator::Visit visit(*each);
        each->drop_group();
    }
}

struct Where {
    ncclComm_t communicator;
    cudaStream_t stream;
};

ncclResult_t enqueue(const char* function, const Call& called, const void* from, void* into,
                     Where where) {
    return call(function, [&] {
        if (!where.communicator) throw Refusal{ncclInvalidArgument, "no communicator"};
        const auto communicator = communicators().find(where.communicator);
        ++group.depth;
        try {
            const Communicator::Visit visit(*communicator);
            communicator->add(
                {called, static_cast<const std::byte*>(from), static_cast<std::byte*>(into)},
                where.stream);
            group.communicators.insert(communicator);
        } catch (...) {
            --group.depth;
            throw;
        }
        return end_group();
    });
}

/// Headers before 2.17 have no such limit.
template <class Config>
void require_ctas(const Config& config) {
    if constexpr (requires { config.maxCTAs; })
        if (config.maxCTAs != configuration().ctas)
            break_rule("a communicator may use another number of CTAs");
}

}  // namespace
}  // namespace guozhuang::emulated_nccl

using namespace guozhuang::emulated_nccl;

ncclResult_t ncclGetVersion(int* version) {
    *version = configuration().version;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t communicator) {
    static thread_local std::string text;
    text = communicator ? communicators().find(communicator)->error() : "";
    return text.empty() ? last_error() : text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    return call(__func__, [&] {
        *id = make_segment();
        return ncclSuccess;
    });
}

// NOLINTNEXTLINE(readability-function-size): the parameters are NCCL's.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    return call(__func__, [&] {
        if (!config || config->blocking != 0) break_rule("a communicator blocks its callers");
        require_ctas(*config);
        *communicator = communicators().add(std::make_shared<Communicator>(id, rank, ranks));
        return ncclInProgress;
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
    return call(__func__, [&] {
        const auto asked = communicators().find(communicator);
        const Communicator::Visit visit(*asked);
        *state = asked->look();
        return ncclSuccess;
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
    return call(__func__, [&] {
        const auto ended = communicators().find(communicator);
        const Communicator::Visit visit(*ended);
        ended->finalize();
        return ncclInProgress;
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    return call(__func__, [&] {
        const auto ended = communicators().find(communicator);
        const Communicator::Visit visit(*ended);
        ended->require_ended();
        communicators().remove(communicator);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    return call(__func__, [&] {
        const auto ended = communicators().find(communicator);
        const Communicator::Visit visit(*ended);
        ended->abort();
        communicators().remove(communicator);
        return ncclSuccess;
    });
}

ncclResult_t ncclGroupStart() {
    return call(__func__, [] {
        ++group.depth;
        return ncclSuccess;
    });
}

ncclResult_t ncclGroupEnd() {
    const auto result = call(__func__, [] { return end_group(); });
    if (result != ncclSuccess && result != ncclInProgress) drop_group();
    return result;
}

// NOLINTBEGIN(readability-function-size): the parameters are NCCL's.
ncclResult_t ncclAllReduce(const void* from, void* into, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::allreduce, type, op, 0, count}, from, into,
                   {communicator, stream});
}

ncclResult_t ncclBroadcast(const void* from, void* into, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::broadcast, type, ncclSum, root, count}, from, into,
                   {communicator, stream});
}

ncclResult_t ncclAllGather(const void* from, void* into, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::all_gather, type, ncclSum, 0, count}, from, into,
                   {communicator, stream});
}

ncclResult_t ncclReduceScatter(const void* from, void* into, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::reduce_scatter, type, op, 0, count}, from, into,
                   {communicator, stream});
}

ncclResult_t ncclReduce(const void* from, void* into, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::reduce, type, op, root, count}, from, into,
                   {communicator, stream});
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::send, type, ncclSum, peer, count}, from, nullptr,
                   {communicator, stream});
}

ncclResult_t ncclRecv(void* into, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
    return enqueue(__func__, {Kind::receive, type, ncclSum, peer, count}, nullptr, into,
                   {communicator, stream});
}
// NOLINTEND(readability-function-size)
