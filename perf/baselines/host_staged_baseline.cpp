#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "baselines/baseline.hpp"
#include "baselines/host_window.hpp"

namespace guozhuang::perf {
namespace {

using Floats = std::span<float>;

constexpr std::size_t segment = 32 * 1024, small = 4 * 1024;  // floats

void copy(Floats to, Floats from) {
    std::memcpy(to.data(), from.data(), from.size_bytes());
}

/// A segment of each rank's block goes to the stage of every other, its owner adds them up, and
/// the sums come back by its stage. These three steps of three segments are taken together, with
/// one wait. What is small all add up for themselves after one.
class HostStagedBaseline final : public Baseline {
public:
    explicit HostStagedBaseline(const MpiJob& job)
        : rank_(job.rank()),
          ranks_(job.size()),
          window_(job, 2 * stage_floats() * sizeof(float)),
          rounds_(job) {}

    std::string_view name() const noexcept override { return "staged"; }
    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte>) override;

    void sum(std::span<const std::span<std::byte>> buffers) override {
        for (const auto bytes : buffers) {
            const Floats all(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
            all.size() <= small ? sum_small(all) : sum_large(all);
        }
    }

private:
    /// A segment for each rank, then the sums.
    std::size_t stage_floats() const { return segment * static_cast<std::size_t>(ranks_ + 1); }
    /// The peer's stage of a turn; two take turns.
    Floats stage(std::size_t turn, int peer) const {
        const Floats both(reinterpret_cast<float*>(window_.part(peer).data()), 2 * stage_floats());
        return both.subspan(turn % 2 * stage_floats(), stage_floats());
    }
    /// The part of it that is for that rank; for `ranks_`, its sums.
    Floats stage(std::size_t turn, int peer, int for_rank) const {
        return stage(turn, peer).subspan(static_cast<std::size_t>(for_rank) * segment, segment);
    }

    void sum_small(Floats all) {
        ++turn_;
        copy(stage(turn_, rank_), all);
        rounds_.end_round();
        copy(all, stage(turn_, 0).first(all.size()));
        for (int peer = 1; peer < ranks_; ++peer) add_floats(all, stage(turn_, peer));
    }

    void sum_large(Floats all) {
        const auto most = segment * static_cast<std::size_t>(ranks_);
        const auto parts = (all.size() + most - 1) / most;
        const auto part = [&](std::size_t i) {
            return all.subspan(i * most, std::min(most, all.size() - i * most));
        };
        for (std::size_t step = 0; step < parts + 2; ++step) {
            ++turn_;
            if (step >= 2) copy_in(part(step - 2));
            if (step >= 1 && step <= parts) add_up(part(step - 1));
            if (step < parts) copy_out(part(step));
            if (step <= parts) rounds_.end_round();
        }
    }
    /// What that rank adds up.
    Floats block(Floats part, int owner) const {
        const auto ranks = static_cast<std::size_t>(ranks_);
        const auto length = (part.size() + ranks - 1) / ranks;
        const auto begin = std::min(static_cast<std::size_t>(owner) * length, part.size());
        return part.subspan(begin, std::min(length, part.size() - begin));
    }
    void copy_out(Floats part) {
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) copy(stage(turn_, rank_, peer), block(part, peer));
    }
    void add_up(Floats part) {
        const auto own = block(part, rank_);
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) add_floats(own, stage(turn_ - 1, peer, rank_));
        copy(stage(turn_, rank_, ranks_), own);
    }
    void copy_in(Floats part) {
        for (int peer = 0; peer < ranks_; ++peer) {
            const auto sums = block(part, peer);
            if (peer != rank_) copy(sums, stage(turn_ - 1, peer, ranks_).first(sums.size()));
        }
    }

    const int rank_, ranks_;
    HostWindow window_;
    HostRounds rounds_;
    std::size_t turn_ = 0;
};

class HostStagedSeries final : public Series {
public:
    HostStagedSeries(HostStagedBaseline& baseline, std::span<std::byte> data)
        : baseline_(baseline), data_(data) {}
    std::string_view name() const noexcept override { return baseline_.name(); }
    void run() override { baseline_.sum({&data_, 1}); }
    std::span<const std::byte> result() const override { return data_; }

private:
    HostStagedBaseline& baseline_;
    std::span<std::byte> data_;
};

std::unique_ptr<Series> HostStagedBaseline::series(const Case& test, std::span<std::byte> input,
                                                   std::span<std::byte>) {
    if (test.collective != Collective::allreduce || test.dtype != DType::f32 ||
        test.op != ReduceOp::sum)
        throw std::invalid_argument("--peer staged has only sums of f32 by allreduce");
    return std::make_unique<HostStagedSeries>(*this, input.first(test.bytes()));
}

}  // namespace

std::unique_ptr<Baseline> make_host_staged_baseline(const MpiJob& job) {
    return std::make_unique<HostStagedBaseline>(job);
}

}  // namespace guozhuang::perf
