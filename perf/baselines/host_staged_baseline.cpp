#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "baselines/baseline.hpp"
#include "baselines/host_window.hpp"

namespace guozhuang::perf {
namespace {

using Floats = std::span<float>;

constexpr std::size_t segment = 32 * 1024, small = 128;  // floats
constexpr std::size_t rooms = 3;

void copy(Floats to, Floats from) {
    std::memcpy(to.data(), from.data(), from.size_bytes());
}

/// Each rank copies a segment, except its own block, to a room of its own; adds up its block from
/// all rooms and writes the sum back into them; and copies the other sums from its room. The three
/// steps of consecutive segments overlap. Every rank adds up short tensors for itself.
class HostStagedBaseline final : public Baseline {
public:
    explicit HostStagedBaseline(const MpiJob& job)
        : rank_(job.rank()),
          ranks_(job.size()),
          window_(job, rooms * segment * sizeof(float)),
          in_(job),
          out_(job) {}

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
    Floats room(std::uint64_t round, int peer) const {
        const Floats all(reinterpret_cast<float*>(window_.part(peer).data()), rooms * segment);
        return all.subspan(round % rooms * segment, segment);
    }

    void sum_small(Floats all) {
        const auto round = in_.round() + 1;
        copy(room(round, rank_), all);
        in_.end_round();
        copy(all, room(round, 0).first(all.size()));
        for (int peer = 1; peer < ranks_; ++peer) add_floats(all, room(round, peer));
    }

    void sum_large(Floats all) {
        const auto parts = (all.size() + segment - 1) / segment;
        const auto part = [&](std::size_t i) {
            return all.subspan(i * segment, std::min(segment, all.size() - i * segment));
        };
        const auto published = in_.round(), answered = out_.round();
        for (std::size_t step = 0; step < parts + 2; ++step) {
            if (step < parts) {
                copy_others(part(step), published + step + 1, /*in=*/false);
                in_.publish();
            }
            if (step >= 1 && step <= parts) {
                in_.await(published + step);
                add_up(part(step - 1), published + step);
                out_.publish();
            }
            if (step >= 2) {
                out_.await(answered + step - 1);
                copy_others(part(step - 2), published + step - 1, /*in=*/true);
            }
        }
    }
    /// The share of a part, or of a room, that the owner adds up.
    Floats block(Floats part, Floats of, int owner) const {
        const auto ranks = static_cast<std::size_t>(ranks_);
        const auto length = (part.size() + ranks - 1) / ranks;
        const auto begin = std::min(static_cast<std::size_t>(owner) * length, part.size());
        return of.subspan(begin, std::min(length, part.size() - begin));
    }
    void copy_others(Floats part, std::uint64_t round, bool in) const {
        for (int peer = 0; peer < ranks_; ++peer) {
            const auto mine = block(part, part, peer),
                       there = block(part, room(round, rank_), peer);
            if (peer != rank_) in ? copy(mine, there) : copy(there, mine);
        }
    }
    void add_up(Floats part, std::uint64_t round) const {
        const auto own = block(part, part, rank_);
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) add_floats(own, block(part, room(round, peer), rank_));
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) copy(block(part, room(round, peer), rank_), own);
    }

    const int rank_, ranks_;
    HostWindow window_;
    HostRounds in_, out_;
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
