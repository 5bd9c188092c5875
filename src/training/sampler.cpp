#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <guozhuang/sampler.hpp>
#include <numeric>
#include <utility>

namespace guozhuang {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014). It gives the same numbers everywhere, which std::shuffle
/// does not promise.
class Random {
public:
    explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

    std::uint64_t next() noexcept {
        state_ += 0x9e3779b97f4a7c15u;
        auto z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// A number below `bound`, each equally likely.
    std::uint64_t below(std::uint64_t bound) noexcept {
        const auto rejected = -bound % bound;  // smaller draws would favour small values
        for (;;)
            if (const auto number = next(); number >= rejected) return number % bound;
    }

private:
    std::uint64_t state_;
};

}  // namespace

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
    std::vector<std::size_t> order(samples_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (options_.shuffle) {
        Random random(Random(options_.seed).next() ^ Random(~epoch).next());
        // The shuffle of Fisher and Yates.
        for (std::size_t i = samples_; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    }
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(done));
    const auto ranks = static_cast<std::size_t>(ranks_);
    if (options_.tail == Tail::drop) order.resize(order.size() / ranks * ranks);
    if (options_.tail == Tail::pad && !order.empty())
        for (std::size_t i = 0; order.size() % ranks != 0; ++i) order.push_back(order[i]);
    indices_.clear();
    for (auto i = static_cast<std::size_t>(rank_); i < order.size(); i += ranks)
        indices_.push_back(order[i]);
}

}  // namespace guozhuang
