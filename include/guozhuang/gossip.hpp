#pragma once

#include <chrono>
#include <cstdint>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <vector>

namespace guozhuang {

/// Who averages with whom in a step. If the number of ranks is odd, one sits out, another each
/// step.
enum class GossipPairs : std::uint8_t {
    random = 0,  ///< drawn anew in each step: information reaches all ranks fastest
    ring = 1     ///< neighbours in the order of ranks: each rank has two partners, in turn
};

/// Options of Gossip. Pairs and seed must be the same on all ranks.
struct GossipOptions {
    GossipPairs pairs = GossipPairs::random;
    std::uint64_t seed = 0;  ///< of random pairs
    /// Tag of the messages, as in PointToPointOptions; another for each Gossip that lives at a
    /// time, and not one that the program's own send() and recv() use meanwhile.
    std::uint16_t tag = 0;
    /// How long a step may wait for its partner. Then the job ends with Error(timeout), which names
    /// the partner: it may have joined (see join()), which does not end a receive. 0: as
    /// GUOZHUANG_STALL_ERROR_S says.
    std::chrono::milliseconds timeout = std::chrono::minutes(10);
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks train together; as in Options
};

/// Gossip averaging: each rank steps by itself, with any optimizer of its own, and then averages
/// its values with those of one other rank. The mean over all ranks stays the same, up to rounding,
/// and the values approach it: with random pairs the expected squared distance halves in each step,
/// about, with ring neighbours it falls more slowly the more ranks there are (S. Boyd et al.,
/// "Randomized Gossip Algorithms", 2006). For training: D-PSGD (X. Lian et al., 2017) and
/// stochastic gradient push (M. Assran et al., 2019). docs/training/local_sgd.md says when it pays.
///
/// All ranks make the same number of steps; DistributedSampler deals the samples so. They never
/// hold quite the same values: at the end average them, for instance with LocalSgd::synchronize().
/// Call broadcast_parameters() before the first step. The parameters' memory must outlive this. One
/// thread at a time.
class GUOZHUANG_API Gossip {
public:
    /// Collective: compares options and parameters. Keeps two copies of the values, of all these
    /// parameters, with a gradient or not. Throws Error(invalid_argument) for no parameters, empty
    /// or duplicate names, and values that overlap or are not contiguous f32 or f64 in host memory;
    /// Error(mismatch) on all ranks if they differ; Error(not_initialised); what operations throw.
    explicit Gossip(std::vector<Parameter> parameters, const GossipOptions& options = {});
    /// Waits for nobody.
    ~Gossip();
    Gossip(Gossip&&) noexcept;

    /// Call it after each step of the local optimizer. Averages with this step's partner, for which
    /// alone it waits, and returns its rank in the job; returns nothing if this rank sits out. Both
    /// then hold the same bits. Throws what send() and recv() throw, such as Error(departed) if the
    /// partner has ended; the values are then as they were. Waits for the timeout of the options at
    /// most.
    std::optional<int> step();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
