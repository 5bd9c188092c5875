#pragma once

#include <cstdint>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <string>
#include <vector>

namespace guozhuang {

/// Options of an AsyncAverager.
struct AsyncAveragerOptions {
    std::string name = {};  ///< as in PlanOptions
    /// A step whose average began this many steps ago waits for it. 1 at least; ranks may differ.
    int max_staleness = 16;
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks train together; as in Options
};

/// Averages values over the ranks in the background, while each rank steps by itself: it copies the
/// values, averages the copies, and adds (average - copy) to the values once the average is there,
/// so that the steps made meanwhile count. The mean over the ranks stays the same, up to rounding.
/// A rank waits for slower ones only when its average has become too stale. The idea is that of
/// elastic averaging (S. Zhang, A. Choromanska, Y. LeCun, "Deep learning with Elastic Averaging
/// SGD", 2015) and asynchronous decentralised SGD (X. Lian et al., AD-PSGD, 2018), with an
/// allreduce in place of a server or of pairs, as in Bagua's asynchronous averaging (S. Gan et al.,
/// 2021). docs/training/local_sgd.md says when it pays.
///
/// Call broadcast_parameters() before the first step. The parameters' memory must outlive this. One
/// thread at a time.
class GUOZHUANG_API AsyncAverager {
public:
    /// Local. Averages the values of all these parameters, with a gradient or not, and keeps two
    /// copies of them. Throws as the constructor of LocalSgd does.
    explicit AsyncAverager(std::vector<Parameter> parameters,
                           const AsyncAveragerOptions& options = {});
    /// Does not wait for other ranks, whose averages still get what this rank has begun. May wait
    /// for data that is moving.
    ~AsyncAverager();
    AsyncAverager(AsyncAverager&&) noexcept;

    /// Call it after each step of the local optimizer. Begins an average, or, once the last one has
    /// arrived, adds it, begins the next, and returns true. Blocks only for an average that is too
    /// stale. Throws what Plan::wait() throws, such as Error(departed) if a rank has ended; the
    /// values then keep what this rank has made of them, and the next call begins a new average.
    /// Averages go on without ranks that have joined (see join()).
    bool step();
    /// At the end of training: goes on with averages, without steps, until all ranks have called
    /// it, whatever number of steps each has made. Then all hold the same values, bit for bit.
    /// Blocks meanwhile. Ranks that run out of data at different times need no join(). Afterwards
    /// training may go on. Throws as step().
    void synchronize();

    std::uint64_t averages() const noexcept;    ///< those that were added
    std::uint64_t late_steps() const noexcept;  ///< calls of step() that had to wait
    /// The most steps that this rank has made between the beginning of an average and its arrival.
    int stalest() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
