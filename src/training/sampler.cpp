#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <guozhuang/sampler.hpp>

#include "training/sample_order.hpp"

namespace guozhuang {

DistributedSampler::DistributedSampler(std::size_t samples, const SamplerOptions& options)
    : samples_(samples), options_(options) {
    const auto& ranks =
        options.process_set != ProcessSet() ? options.process_set : ProcessSet(options.session);
    rank_ = ranks.rank();
    ranks_ = ranks.size();
    set_epoch(0);
}

void DistributedSampler::set_epoch(std::uint64_t epoch, std::size_t done) {
    if (done > samples_)
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("set_epoch: {} samples are done, of {} that there are", done, samples_));
    auto order = sample_order(samples_, options_.seed, epoch, options_.shuffle);
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(done));
    const auto ranks = static_cast<std::size_t>(ranks_);
    even_out(order, ranks, options_.tail);
    indices_.clear();
    for (auto i = static_cast<std::size_t>(rank_); i < order.size(); i += ranks)
        indices_.push_back(order[i]);
}

}  // namespace guozhuang
