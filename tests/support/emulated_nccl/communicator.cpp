#include "support/emulated_cuda/kernel.hpp"

#include "support/emulated_nccl/communicator.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "support/emulated_nccl/configuration.hpp"

namespace guozhuang::emulated_nccl {
namespace {

/// The kernel, which one thread of one block runs.
void run_group(const Launch* launch) {
    run(*launch);
    delete launch;
}

void expect(cudaError_t status) {
    if (status != cudaSuccess) throw Refusal{ncclUnhandledCudaError, cudaGetErrorString(status)};
}

}  // namespace

Communicator::Communicator(const ncclUniqueId& id, int rank, int ranks)
    : segment_(open_segment(id)), rank_(rank), ranks_(ranks) {
    if (ranks < 1 || ranks > static_cast<int>(most_ranks) || rank < 0 || rank >= ranks)
        throw Refusal{ncclInvalidArgument,
                      "rank " + std::to_string(rank) + " of " + std::to_string(ranks)};
    expect(cudaGetDevice(&device_));
    // NCCL loads its kernels when it connects, so that none has to wait for the device later.
    cudaFuncAttributes attributes{};
    expect(cudaFuncGetAttributes(&attributes, run_group));
    cudaDeviceProp properties{};
    expect(cudaGetDeviceProperties(&properties, device_));
    of_rank(rank).pci_bus = properties.pciBusID;
    of_rank(rank).host = configuration().host;
    if (!configuration().hangs) of_rank(rank).is_here = true;
}

Communicator::Visit::Visit(Communicator& visited) : visited_(visited) {
    if (visited.is_inside_.exchange(true)) break_rule("two threads are in one communicator");
    if (visited.grouping_ != std::thread::id() && visited.grouping_ != std::this_thread::get_id())
        break_rule("a communicator is used while another thread has it in a group");
}

bool Communicator::are_all(std::atomic<bool> Segment::OfRank::*which) const {
    for (int rank = 0; rank < ranks_; ++rank)
        if (!(of_rank(rank).*which)) return false;
    return true;
}

ncclResult_t Communicator::look() {
    if (++looks_ > 1) {
        if (state_ == State::connecting)
            connect();
        else if (state_ == State::launching)
            launch();
        else if (state_ == State::ending)
            end();
    }
    if (state_ == State::failed) return failure_;
    return state_ == State::ready || state_ == State::ended ? ncclSuccess : ncclInProgress;
}

void Communicator::connect() {
    if (!are_all(&Segment::OfRank::is_here)) return;
    state_ = State::ready;
    for (int rank = 0; rank < ranks_; ++rank) {
        if (rank == rank_ || of_rank(rank).pci_bus != of_rank(rank_).pci_bus ||
            of_rank(rank).host != of_rank(rank_).host)
            continue;
        state_ = State::failed;
        failure_ = ncclInvalidUsage;
        error_ = "Duplicate GPU detected : rank " + std::to_string(rank_) + " and rank " +
                 std::to_string(rank) + " both on one CUDA device";
    }
}

/// NCCL has threads of its own for this, on which the device is current.
void Communicator::launch() {
    const bool fails = ++groups_ == configuration().failing_group;
    auto* launched = new Launch{.segment = segment_,
                                .rank = rank_,
                                .ranks = ranks_,
                                .device = device_,
                                .operations = std::exchange(operations_, {}),
                                .fails = fails,
                                .aborted = aborted_,
                                .in_flight = in_flight_};
    ++*in_flight_;
    auto status = cudaSuccess;
    std::thread([&] {
        void* arguments[] = {&launched};
        status = cudaSetDevice(device_);
        if (status == cudaSuccess)
            status = cudaLaunchKernel(run_group, dim3(1), dim3(1), arguments, 0, stream_);
    }).join();
    state_ = State::ready;
    if (status != cudaSuccess) {
        failure_ = ncclUnhandledCudaError;
        error_ = cudaGetErrorString(status);
    } else if (fails) {
        failure_ = ncclRemoteError;
        error_ = "emulated failure in the background";
    }
    if (failure_ != ncclSuccess) state_ = State::failed;
}

void Communicator::require_ready() const {
    if (state_ == State::failed) throw Refusal{failure_, error_};
    if (state_ == State::ending || state_ == State::ended)
        break_rule("a communicator is used after ncclCommFinalize");
    if (state_ != State::ready) break_rule("a communicator is used before it is ready");
}

void Communicator::add(const Operation& operation, cudaStream_t stream) {
    require_ready();
    if (!operations_.empty() && stream != stream_)
        throw Refusal{ncclInvalidUsage, "one communicator on two streams in a group"};
    grouping_ = std::this_thread::get_id();
    stream_ = stream;
    operations_.push_back(operation);
}

void Communicator::end_group() {
    grouping_ = {};
    state_ = State::launching;
    looks_ = 0;
}

void Communicator::drop_group() {
    grouping_ = {};
    operations_.clear();
}

void Communicator::finalize() {
    require_ready();
    state_ = State::ending;
    looks_ = 0;
}

void Communicator::end() {
    if (*in_flight_ == 0) of_rank(rank_).has_finalized = true;
    if (are_all(&Segment::OfRank::has_finalized)) state_ = State::ended;
}

/// NCCL's own waits for its threads and kernels.
void Communicator::abort() {
    *aborted_ = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(configuration().abort_ms));
}

void Communicator::require_ended() const {
    if (state_ != State::ended) break_rule("a communicator is destroyed before it has ended");
}

}  // namespace guozhuang::emulated_nccl
