#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/sampler.hpp>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>
#include <vector>

namespace guozhuang::torch {

/// guozhuang::DistributedSampler for the data loaders of libtorch, which reset their sampler at the
/// beginning of each epoch: the first time this begins epoch 0, then the next one each time.
///
///     auto loader = torch::data::make_data_loader(
///         dataset, guozhuang::torch::DistributedSampler(size, {.seed = 7}), batch_size);
class DistributedSampler : public ::torch::data::samplers::Sampler<> {
public:
    explicit DistributedSampler(std::size_t samples, const SamplerOptions& options = {})
        : options_(options), samples_(samples, options) {}

    /// The epoch that the next reset() begins; the same on all ranks.
    void set_epoch(std::uint64_t epoch) { samples_.set_epoch(epoch_ = epoch); }

    /// Begins an epoch, of another number of samples if that is given.
    void reset(c10::optional<std::size_t> new_size = c10::nullopt) override {
        if (new_size) samples_ = guozhuang::DistributedSampler(*new_size, options_);
        samples_.set_epoch(epoch_++);
        next_ = 0;
    }

    /// This rank's next samples of the epoch, at most this many; none at its end.
    c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
        const auto& all = samples_.indices();
        const auto count = std::min(batch_size, all.size() - next_);
        if (count == 0) return c10::nullopt;
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(next_);
        next_ += count;
        return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
    }

    void save(::torch::serialize::OutputArchive& archive) const override {
        archive.write("epoch", static_cast<std::int64_t>(epoch_));
        archive.write("next", static_cast<std::int64_t>(next_));
    }
    void load(::torch::serialize::InputArchive& archive) override {
        c10::IValue epoch, next;
        archive.read("epoch", epoch);
        archive.read("next", next);
        epoch_ = static_cast<std::uint64_t>(epoch.toInt());
        next_ = static_cast<std::size_t>(next.toInt());
        samples_.set_epoch(epoch_ == 0 ? 0 : epoch_ - 1);
    }

private:
    SamplerOptions options_;
    guozhuang::DistributedSampler samples_;
    std::uint64_t epoch_ = 0;  ///< that the next reset() begins
    std::size_t next_ = 0;     ///< of this rank's samples
};

}  // namespace guozhuang::torch
