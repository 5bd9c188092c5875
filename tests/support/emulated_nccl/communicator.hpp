#pragma once

#include <atomic>
#include <cuda_runtime_api.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/emulated_nccl/calls.hpp"
#include "support/emulated_nccl/exchange.hpp"

namespace guozhuang::emulated_nccl {

/// A communicator of one rank. NCCL's background work is done when its state is queried, in the
/// second query at the earliest.
class Communicator {
public:
    /// Throws Refusal.
    Communicator(const ncclUniqueId& id, int rank, int ranks);

    /// A call by a thread, which must be the only thread inside.
    class Visit {
    public:
        explicit Visit(Communicator& visited);
        ~Visit() { visited_.is_inside_ = false; }
        Visit(const Visit&) = delete;
        Visit& operator=(const Visit&) = delete;

    private:
        Communicator& visited_;
    };

    ncclResult_t look();
    /// Adds an operation to this thread's group.
    void add(const Operation& operation, cudaStream_t stream);
    void end_group();
    void drop_group();
    void finalize();
    void require_ended() const;
    void abort();
    const std::string& error() const noexcept { return error_; }

private:
    enum class State { connecting, ready, launching, failed, ending, ended };

    void require_ready() const;
    void connect();
    void launch();
    void end();
    bool are_all(std::atomic<bool> Segment::OfRank::*which) const;
    Segment::OfRank& of_rank(int rank) const {
        return segment_->of_ranks.at(static_cast<std::size_t>(rank));
    }

    const std::shared_ptr<Segment> segment_;
    const int rank_, ranks_;
    int device_ = 0;
    State state_ = State::connecting;
    int looks_ = 0;  ///< since the state was entered
    ncclResult_t failure_ = ncclSuccess;
    std::string error_;
    std::vector<Operation> operations_;
    cudaStream_t stream_ = nullptr;
    std::uint64_t groups_ = 0;
    std::thread::id grouping_;  ///< whose group has operations of it
    std::atomic<bool> is_inside_ = false;
    const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
    const std::shared_ptr<std::atomic<int>> in_flight_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace guozhuang::emulated_nccl
