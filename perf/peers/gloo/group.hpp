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

/// c10d's process group over Gloo, on the loopback of one host. A wall: libtorch's headers are
/// C++17 (not all compilers take them as C++20), the rest of the program is C++20, and neither sees
/// the other's. Throws what c10d throws, all of it std::exception.
class GlooGroup {
public:
    GlooGroup(int rank, int size);
    ~GlooGroup();
    GlooGroup(const GlooGroup&) = delete;
    GlooGroup& operator=(const GlooGroup&) = delete;

    /// On rank 0, before any rank joins: serves the store through which the ranks find each other.
    /// Returns its port, chosen by the system.
    std::uint16_t serve();
    /// Collective.
    void join(std::uint16_t port);
    /// Sums over all ranks, in place. All are under way at once, as DistributedDataParallel has its
    /// buckets. Collective, after join().
    void sum(const std::vector<Floats>& buffers);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang::perf
