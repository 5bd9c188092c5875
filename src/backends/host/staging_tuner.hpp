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

/// Finds by trying which of a few ways of doing the same costs least where the program runs, and
/// keeps to it until another costs less. Pure: objects that are told the same costs choose the
/// same.
class Trials {
public:
    static constexpr std::size_t ways = 2;
    /// A trial is so many turns in a row, because the first ones after turns of the other way find
    /// the caches as that has left them.
    static constexpr std::size_t trial = 4;
    /// A way is tried anew after so many turns.
    static constexpr std::size_t between = 125;

    Trials() noexcept { costs_.fill(std::numeric_limits<float>::infinity()); }

    /// The way of the next turn: the best, or one that is tried. At first all are, twice.
    std::size_t next() const noexcept;
    /// Ends that turn.
    void advance() noexcept;
    /// Takes the cost of a turn, in any unit, in the order of the turns. Returns whether another
    /// way is now the best.
    bool record(std::size_t way, float cost) noexcept;
    std::size_t best() const noexcept { return best_; }

private:
    bool tries() const noexcept { return turn_ < 2 * ways * trial || turn_ % between < trial; }

    std::size_t best_ = 0, turn_ = 0, tried_ = 0;
    std::array<float, ways> costs_{};  ///< of each way, as it is believed to be
};

/// Runs what a group stages, and finds out how: with stores that stay in the caches, or go past
/// them. The faster kind depends on which caches the ranks share, and nothing but the time depends
/// on it. Every operation and size has its own answer, found on operations that run anyway, whose
/// cost is the fastest rank's, which was the last to begin and waited for nobody. The others see
/// its figure one operation later, so that all ranks change at the same one. The staged allreduce
/// needs no trial (docs/decisions/047): it uses the group alone. One thread at a time.
class StagingTuner {
public:
    StagingTuner(const wire::Group& ranks, const wire::Staging& staging) : group_(ranks, staging) {}

    wire::SharedMemoryGroup& group() noexcept { return group_; }

    /// move(group) is an operation that moves this many bytes: all ranks say the same.
    template <class Move>
    void run(OperationKind operation, std::size_t bytes, const Move& move) {
        const auto run = begin(operation, bytes);
        move(group_);
        end(run);
    }

private:
    using Key = std::pair<OperationKind, int>;  ///< and the binary logarithm of the size
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
    /// The run whose cost this rank published last, if the others' are yet to be read.
    std::optional<Run> published_;
    std::size_t slot_ = 0;  ///< where it published it
};

}  // namespace guozhuang::backends
