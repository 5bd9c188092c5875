#pragma once

#include <thread>
#include <vector>

namespace guozhuang::perf {

/// Threads that are always busy, on any core of the host, as another program's would be. The first
/// rank of each host starts them in its process, and ends them when this is destroyed. Collective.
class BusyThreads {
public:
    explicit BusyThreads(int threads);

private:
    std::vector<std::jthread> threads_;
};

/// A token that goes around the ranks of each host, through pipes: what it costs here to wake
/// another process. Making one is collective. Throws std::system_error.
class PipeRing {
public:
    PipeRing();
    ~PipeRing();
    PipeRing(const PipeRing&) = delete;
    PipeRing& operator=(const PipeRing&) = delete;

    /// Once around, which is as many hops as the host has ranks. Collective.
    void pass_token();
    int ranks() const noexcept { return size_; }

private:
    void send();
    void receive();

    int rank_ = 0, size_ = 1;  ///< of this host
    int in_ = -1, out_ = -1;
};

}  // namespace guozhuang::perf
