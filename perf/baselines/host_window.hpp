#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mpi.h>
#include <span>
#include <vector>

#include "mpi_job.hpp"

namespace guozhuang::perf {

/// Memory that all ranks have mapped: a part for each, aligned to cache lines. Made and destroyed
/// by all alike. Throws Unavailable if they are not all on one host.
class HostWindow {
public:
    HostWindow(const MpiJob& job, std::size_t bytes);
    ~HostWindow();
    HostWindow(const HostWindow&) = delete;
    HostWindow& operator=(const HostWindow&) = delete;

    std::span<std::byte> part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }

private:
    MPI_Win window_ = MPI_WIN_NULL;
    std::vector<std::span<std::byte>> parts_;
};

/// Lets the ranks of a host go on together: what each has written before a round, all see after it.
class HostRounds {
public:
    explicit HostRounds(const MpiJob& job);
    void end_round() {
        publish();
        await(round_);
    }
    /// The two halves of end_round(): publish() counts this rank's rounds up, and await() returns
    /// when all ranks have published the round.
    void publish() { own_->store(++round_, std::memory_order_release); }
    void await(std::uint64_t round) const;
    std::uint64_t round() const noexcept { return round_; }

private:
    using Flag = std::atomic<std::uint64_t>;

    HostWindow window_;
    std::vector<Flag*> flags_;  ///< by rank: how far it is
    Flag* own_;
    std::uint64_t round_ = 0;
    int most_looks_ = 1000;  ///< before others get this rank's core
};

/// to += from, in runs of a fixed length, which the compiler turns into the widest vector code that
/// the processor has. They do not overlap.
void add_floats(std::span<float> to, std::span<const float> from);

}  // namespace guozhuang::perf
