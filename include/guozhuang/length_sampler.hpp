#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/export.hpp>
#include <guozhuang/sampler.hpp>
#include <span>
#include <vector>

namespace guozhuang {

/// How samples of unequal length are divided among ranks; the same on all of them.
struct LengthSamplerOptions {
    std::size_t batch = 1;  ///< samples of each rank in each step; at least 1
    /// Each run of `window` samples of the shuffled order is sorted by length before it is cut into
    /// steps. 0: none is, so each step has the same samples as with a DistributedSampler, and only
    /// their division among the ranks goes by length.
    std::size_t window = 0;
    /// Steps are shuffled within a window in pieces of this many samples: whole steps if it is a
    /// multiple of batch * ranks. 0: batch * ranks. Needs a fixed number if the number of ranks may
    /// change in the middle of an epoch.
    std::size_t bucket = 0;
    /// Seed, shuffling, tail and ranks. `Tail::uneven`, with which some ranks may have a step more
    /// than others, is refused.
    SamplerOptions sampler = {};
};

/// This rank's batches of samples 0 .. samples-1, so that in each step all ranks have about the
/// same total length: a step lasts as long as its longest rank. In each step the samples go from
/// the longest to the shortest, each to the rank with the smallest total that has room (Graham's
/// longest processing time first, 1969). All ranks have the same number of batches, of the same
/// size; in the last step it may be smaller. One thread at a time.
class GUOZHUANG_API LengthSampler {
public:
    /// `lengths` has the length of each sample, or another measure of what it costs; the same on
    /// all ranks. Begins with epoch 0. Throws Error(not_initialised), and Error(invalid_argument)
    /// for options out of range.
    explicit LengthSampler(std::vector<std::size_t> lengths,
                           const LengthSamplerOptions& options = {});

    /// As DistributedSampler::set_epoch: the order depends on seed, epoch, lengths, window and
    /// bucket only, and its first `done` samples are left out.
    void set_epoch(std::uint64_t epoch, std::size_t done = 0);

    /// How many batches each rank has in an epoch.
    std::size_t steps() const noexcept;
    /// This rank's samples of a step, the longest first. Throws Error(invalid_argument) if there
    /// are fewer steps. Valid until the next set_epoch().
    std::span<const std::size_t> batch(std::size_t step) const&;
    std::span<const std::size_t> batch(std::size_t step) && = delete;

private:
    void sort_windows(std::vector<std::size_t>& order, std::uint64_t epoch) const;
    void deal(std::span<std::size_t> samples);

    std::vector<std::size_t> lengths_;
    LengthSamplerOptions options_;
    std::size_t rank_;
    std::size_t ranks_;
    std::vector<std::size_t> indices_;
};

}  // namespace guozhuang
