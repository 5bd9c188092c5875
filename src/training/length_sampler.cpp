#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <guozhuang/length_sampler.hpp>
#include <string>
#include <utility>

#include "training/sample_order.hpp"

namespace guozhuang {
namespace {

[[noreturn]] void refuse_sampling(const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "LengthSampler: " + problem);
}

/// Calls act with each part of `count` items; the last may have fewer.
template <class Act>
void for_each_part(std::span<std::size_t> items, std::size_t count, const Act& act) {
    for (; !items.empty(); items = items.subspan(std::min(count, items.size())))
        act(items.first(std::min(count, items.size())));
}

}  // namespace

LengthSampler::LengthSampler(std::vector<std::size_t> lengths, const LengthSamplerOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
    const auto& sampler = options.sampler;
    if (options.batch == 0) refuse_sampling("batch is 0; it must be 1 at least");
    if (sampler.tail == Tail::uneven)
        refuse_sampling("tail is Tail::uneven, which may give some ranks a step more than others");
    const auto& ranks =
        sampler.process_set != ProcessSet() ? sampler.process_set : ProcessSet(sampler.session);
    rank_ = static_cast<std::size_t>(ranks.rank());
    ranks_ = static_cast<std::size_t>(ranks.size());
    if (options_.bucket == 0) options_.bucket = options.batch * ranks_;
    set_epoch(0);
}

void LengthSampler::set_epoch(std::uint64_t epoch, std::size_t done) {
    if (done > lengths_.size())
        refuse_sampling(
            fmt::format("{} samples are done, of {} that there are", done, lengths_.size()));
    const auto& [batch, window, bucket, sampler] = options_;
    auto order = sample_order(lengths_.size(), sampler.seed, epoch, sampler.shuffle);
    if (window > 0) sort_windows(order, epoch);
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(done));
    even_out(order, ranks_, sampler.tail);
    indices_.clear();
    const auto step = std::min(batch, std::max<std::size_t>(order.size(), 1)) * ranks_;
    for_each_part(order, step, [this](auto samples) { deal(samples); });
}

/// Sorts each window by length, and shuffles its buckets.
void LengthSampler::sort_windows(std::vector<std::size_t>& order, std::uint64_t epoch) const {
    const auto length_of = [this](std::size_t sample) { return lengths_[sample]; };
    Random random(~options_.sampler.seed, epoch);
    std::vector<std::size_t> shuffled;
    shuffled.reserve(order.size());
    for_each_part(order, options_.window, [&](std::span<std::size_t> window) {
        std::ranges::stable_sort(window, {}, length_of);
        std::vector<std::span<std::size_t>> buckets;
        for_each_part(window, options_.bucket, [&](auto part) { buckets.push_back(part); });
        if (options_.sampler.shuffle) random.shuffle(std::span(buckets));
        for (const auto bucket : buckets)
            shuffled.insert(shuffled.end(), bucket.begin(), bucket.end());
    });
    order = std::move(shuffled);
}

/// Gives each rank as many of a step's samples, and keeps this rank's.
void LengthSampler::deal(std::span<std::size_t> samples) {
    struct Share {
        std::size_t length, rank, samples;
    };
    const auto is_behind = [](const Share& one, const Share& other) {
        return std::pair(one.length, one.rank) > std::pair(other.length, other.rank);
    };
    std::vector<Share> open;  // a heap: the smallest share is in front
    for (std::size_t rank = 0; rank < ranks_; ++rank) open.push_back({0, rank, 0});
    std::ranges::stable_sort(samples, std::ranges::greater(),
                             [this](std::size_t sample) { return lengths_[sample]; });
    for (const auto sample : samples) {
        std::ranges::pop_heap(open, is_behind);
        auto& least = open.back();
        if (least.rank == rank_) indices_.push_back(sample);
        least.length += lengths_[sample];
        if (++least.samples == samples.size() / ranks_)
            open.pop_back();
        else
            std::ranges::push_heap(open, is_behind);
    }
}

std::size_t LengthSampler::steps() const noexcept {
    return (indices_.size() + options_.batch - 1) / options_.batch;
}

std::span<const std::size_t> LengthSampler::batch(std::size_t step) const& {
    if (step >= steps())
        refuse_sampling(fmt::format("there is no step {}; there are {}", step, steps()));
    const auto from = step * options_.batch;
    return std::span(indices_).subspan(from, std::min(options_.batch, indices_.size() - from));
}

}  // namespace guozhuang
