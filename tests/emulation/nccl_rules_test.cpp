// Misuse that the emulated NCCL refuses.

#include <csignal>
#include <nccl.h>
#include <thread>

#include "emulation/child.hpp"
#include "emulation/cuda_objects.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang::test;

namespace {

void expect_nccl(ncclResult_t result, const char* what) {
    if (result != ncclSuccess && result != ncclInProgress)
        throw std::runtime_error(std::string(what) + ": " + ncclGetLastError(nullptr));
}

ncclResult_t settled(ncclComm_t communicator) {
    for (;;) {
        ncclResult_t state = ncclSuccess;
        expect_nccl(ncclCommGetAsyncError(communicator, &state), "no state");
        if (state != ncclInProgress) return state;
        std::this_thread::yield();
    }
}

ncclUniqueId made_id() {
    ncclUniqueId id;
    expect_nccl(ncclGetUniqueId(&id), "no id");
    return id;
}

ncclComm_t connecting(const ncclUniqueId& id, int rank, int ranks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t communicator = nullptr;
    expect(cudaSetDevice(rank), "no device");
    expect_nccl(ncclCommInitRankConfig(&communicator, ranks, id, rank, &config), "no communicator");
    return communicator;
}

ncclComm_t connected_alone() {
    const auto communicator = connecting(made_id(), 0, 1);
    expect_nccl(settled(communicator), "not connected");
    return communicator;
}

/// The memory of one rank, and a stream.
struct Rank {
    explicit Rank(int device) { expect(cudaSetDevice(device), "no device"); }
    float* const memory = device_memory<float>(1000);
    const TestStream stream;

    ncclResult_t sum(ncclComm_t communicator, std::size_t count) const {
        return ncclAllReduce(memory, memory, count, ncclFloat32, ncclSum, communicator,
                             stream.native);
    }
};

const ChildCase too_early("use a communicator too early", [](const Arguments&) {
    const auto communicator = connecting(made_id(), 0, 1);
    Rank(0).sum(communicator, 1);
    return 0;
});

const ChildCase again("use a communicator before its last call is done", [](const Arguments&) {
    const auto communicator = connected_alone();
    const Rank rank(0);
    rank.sum(communicator, 1);
    rank.sum(communicator, 1);
    return 0;
});

const ChildCase after_abort("use an aborted communicator", [](const Arguments&) {
    const auto communicator = connected_alone();
    ncclCommAbort(communicator);
    Rank(0).sum(communicator, 1);
    return 0;
});

const ChildCase during_abort("use a communicator during its abort", [](const Arguments&) -> int {
    const auto communicator = connected_alone();
    const std::jthread aborts([communicator] { ncclCommAbort(communicator); });
    for (ncclResult_t state = ncclSuccess;;) ncclCommGetAsyncError(communicator, &state);
});

const ChildCase two_threads("use a communicator by two threads", [](const Arguments&) {
    const auto communicator = connected_alone();
    const Rank rank(0);
    ncclGroupStart();
    rank.sum(communicator, 1);
    std::thread([communicator] { settled(communicator); }).join();
    return 0;
});

const ChildCase destroyed("destroy a communicator too early", [](const Arguments&) {
    ncclCommDestroy(connected_alone());
    return 0;
});

const ChildCase blocking("make a communicator that blocks", [](const Arguments&) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t communicator = nullptr;
    ncclCommInitRankConfig(&communicator, 1, made_id(), 0, &config);
    return 0;
});

/// Two ranks, each a thread with a device of its own.
template <class Body>
int as_two_ranks(const Body& body) {
    const auto id = made_id();
    const auto run = [&](int rank) {
        const auto communicator = connecting(id, rank, 2);
        expect_nccl(settled(communicator), "not connected");
        const Rank own(rank);
        body(rank, own, communicator);
        settled(communicator);
        cudaStreamSynchronize(own.stream.native);
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    return 0;
}

const ChildCase other_calls("call collectives that differ", [](const Arguments&) {
    return as_two_ranks([](int rank, const Rank& own, ncclComm_t communicator) {
        if (rank == 0) own.sum(communicator, 10);
        if (rank == 1)
            ncclBroadcast(own.memory, own.memory, 10, ncclFloat32, 0, communicator,
                          own.stream.native);
    });
});

const ChildCase other_counts("call collectives of counts that differ", [](const Arguments&) {
    return as_two_ranks([](int rank, const Rank& own, ncclComm_t communicator) {
        own.sum(communicator, rank == 0 ? 10 : 11);
    });
});

const ChildCase well("sum well", [](const Arguments&) {
    return as_two_ranks(
        [](int, const Rank& own, ncclComm_t communicator) { own.sum(communicator, 1000); });
});

bool is_broken_rule_of_nccl(const std::string& child, const std::string& rule) {
    const auto end = end_of(child, {{"EMULATED_CUDA_DEVICES", "2"}});
    UNSCOPED_INFO(child << ": " << end.output);
    return end.signal == SIGABRT &&
           end.output.find("emulated NCCL: rule: " + rule) != std::string::npos;
}

}  // namespace

TEST_CASE("the emulated NCCL is held to NCCL's rules") {
    CHECK(is_broken_rule_of_nccl("use a communicator too early",
                                 "a communicator is used before it is ready"));
    CHECK(is_broken_rule_of_nccl("use a communicator before its last call is done",
                                 "a communicator is used before it is ready"));
    CHECK(is_broken_rule_of_nccl("use an aborted communicator",
                                 "a communicator is used that is none, or has ended"));
    CHECK(is_broken_rule_of_nccl("use a communicator during its abort",
                                 "two threads are in one communicator"));
    CHECK(is_broken_rule_of_nccl("use a communicator by two threads",
                                 "a communicator is used while another thread has it in a group"));
    CHECK(is_broken_rule_of_nccl("destroy a communicator too early",
                                 "a communicator is destroyed before it has ended"));
    CHECK(is_broken_rule_of_nccl("make a communicator that blocks",
                                 "a communicator blocks its callers"));
}

TEST_CASE("the emulated NCCL sees ranks that call differently") {
    CHECK(is_broken_rule_of_nccl("call collectives that differ", "rank "));
    CHECK(is_broken_rule_of_nccl("call collectives of counts that differ", "rank "));
    CHECK(end_of("sum well", {{"EMULATED_CUDA_DEVICES", "2"}}).exit_code == 0);
}
