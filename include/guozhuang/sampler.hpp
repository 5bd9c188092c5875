#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <utility>
#include <vector>

namespace guozhuang {

/// How samples that do not divide evenly are spread. `pad` repeats some so that all ranks get the
/// same number; `drop` leaves some out; `uneven` gives the first ranks one more, and so perhaps one
/// step more. `uneven` is for evaluation, never around collective calls such as optimizer.step(),
/// in which the other ranks would be missing.
enum class Tail { pad, drop, uneven };

/// How samples are divided among ranks; the same on all of them.
struct SamplerOptions {
    std::uint64_t seed = 0;  ///< of the order; only with `shuffle`
    bool shuffle = true;     ///< false: the samples in their own order, every epoch
    Tail tail = Tail::pad;   ///< what happens to the samples that are left over
    /// The session whose ranks share the samples; null: Session::current(). Used in the constructor
    /// only.
    Session* session = nullptr;
    ProcessSet process_set = {};  ///< whose ranks share the samples, if not all
};

/// This rank's share of the samples 0 .. samples-1, in a new order every epoch. Index i of the
/// common order belongs to rank i % size, so the shares are disjoint (except for padding) and
/// together are the data set; batches of b on p ranks hold the samples of one batch of b p. The
/// order depends on seed and epoch only. One thread at a time.
class GUOZHUANG_API DistributedSampler {
public:
    /// Begins with epoch 0. Throws Error(not_initialised).
    explicit DistributedSampler(std::size_t samples, const SamplerOptions& options = {});

    /// Draws the order of an epoch (the first is 0), and leaves out its first `done` samples: those
    /// that all ranks together have used, if their number has changed in the middle of an epoch.
    /// Local; call it with the same values on all ranks. Throws Error(invalid_argument) if there
    /// are not so many samples.
    void set_epoch(std::uint64_t epoch, std::size_t done = 0);

    /// How many samples this rank has in an epoch.
    std::size_t size() const noexcept { return indices_.size(); }
    /// This rank's samples of the epoch, in their order.
    const std::vector<std::size_t>& indices() const& noexcept { return indices_; }
    std::vector<std::size_t> indices() && noexcept { return std::move(indices_); }
    auto begin() const noexcept { return indices_.begin(); }
    auto end() const noexcept { return indices_.end(); }

private:
    std::size_t samples_;
    SamplerOptions options_;
    int rank_;
    int ranks_;
    std::vector<std::size_t> indices_;
};

}  // namespace guozhuang
