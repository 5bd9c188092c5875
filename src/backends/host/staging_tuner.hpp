#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/wait.hpp"
#include "engine/backend.hpp"
#include "wire/group/shared_memory_group.hpp"

namespace guozhuang::backends {

/// Finds by trial which of a few equivalent ways costs least where the program runs, and keeps to
/// it until another costs less. Deterministic: objects that are given the same costs choose the
/// same way.
class Trials {
public:
    static constexpr std::size_t ways = 2;
    /// A trial takes this many consecutive turns, because the first turns find the caches as the
    /// other way has left them.
    static constexpr std::size_t trial = 4;
    /// A way is tried again after this many turns.
    static constexpr std::size_t between = 125;

    Trials() noexcept { costs_.fill(std::numeric_limits<float>::infinity()); }

    /// The way for the next turn: the best, or one on trial. At first each way has two trials.
    std::size_t next() const noexcept;
    /// Ends that turn.
    void advance() noexcept;
    /// Takes the cost of a turn, in any unit, in the order of the turns. Returns whether another
    /// way is now best.
    bool record(std::size_t way, float cost) noexcept;
    std::size_t best() const noexcept { return best_; }

private:
    bool tries() const noexcept { return turn_ < 2 * ways * trial || turn_ % between < trial; }

    std::size_t best_ = 0, turn_ = 0, tried_ = 0;
    std::array<float, ways> costs_{};  ///< the believed cost of each way
};

/// Runs staged operations of a group, and finds out which stores are faster: those that stay in the
/// caches, or those that bypass them. The answer depends on which caches the ranks share, and
/// affects only the time. Every operation and size has its own answer, found on operations that run
/// anyway. The cost of an operation is that of the fastest rank, which began last and waited for
/// nobody. The other ranks see its figure one operation later, so that all change at the same
/// operation. The staged allreduce needs no trial (docs/decisions/047): it uses the group directly.
/// One thread at a time.
class StagingTuner {
public:
    StagingTuner(const wire::Group& ranks, const wire::Staging& staging) : group_(ranks, staging) {}

    wire::SharedMemoryGroup& group() noexcept { return group_; }

    /// move(group) is an operation that moves this many bytes, the same number on all ranks.
    template <class Move>
    void run(OperationKind operation, std::size_t bytes, const Move& move) {
        const auto run = begin(operation, bytes);
        move(group_);
        end(run);
    }

private:
    using Key = std::pair<OperationKind, int>;  ///< with the binary logarithm of the size
    struct Run {
        Key key;
        std::size_t bytes = 0;  ///< 0: too few to be tried
        std::size_t way = 0;
        base::Clock::time_point began = {};
    };
    Run begin(OperationKind operation, std::size_t bytes);
    void end(const Run& run);
    void record(const Run& run);

    static bool streams(std::size_t way) noexcept { return way == 1; }

    wire::SharedMemoryGroup group_;
    std::map<Key, Trials> trials_;
    /// The run whose cost this rank published last, until it has read the costs of the others.
    std::optional<Run> published_;
    std::size_t slot_ = 0;  ///< where it published it
};

}  // namespace guozhuang::backends
