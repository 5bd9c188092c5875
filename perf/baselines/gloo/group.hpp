#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace guozhuang::perf {

struct Floats {
    float* data;
    std::size_t count;
};

/// c10d's process group over Gloo, on the loopback of one host. This header separates C++17, which
/// libtorch's headers need, from the C++20 of the rest of the program. Throws what c10d throws, all
/// derived from std::exception.
class GlooGroup {
public:
    GlooGroup(int rank, int size);
    ~GlooGroup();
    GlooGroup(const GlooGroup&) = delete;
    GlooGroup& operator=(const GlooGroup&) = delete;

    /// To be called on rank 0 before any rank joins: serves the store through which the ranks find
    /// each other. Returns its port, which the system chooses.
    std::uint16_t serve();
    /// Collective.
    void join(std::uint16_t port);
    /// Sums over all ranks, in place, all buffers at the same time, as DistributedDataParallel does
    /// with its buckets. Collective, after join().
    void sum(const std::vector<Floats>& buffers);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang::perf
