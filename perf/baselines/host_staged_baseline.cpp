#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "baselines/baseline.hpp"
#include "baselines/mpi_types.hpp"

namespace guozhuang::perf {
namespace {

using Floats = std::span<float>;

constexpr std::size_t segment = 32 * 1024, small = 4 * 1024;  // floats

/// In the memory of each rank, which all have mapped: how far it is, then its stages.
struct alignas(64) Flag {
    std::atomic<std::uint64_t> round{0};
};

void copy(Floats to, Floats from) {
    std::memcpy(to.data(), from.data(), from.size_bytes());
}

/// In runs of a fixed length, which the compiler turns into vector code.
void add(Floats to, Floats from) {
    constexpr std::size_t run = 16;
    std::size_t i = 0;
    for (; i + run <= to.size(); i += run)
        for (std::size_t j = 0; j < run; ++j) to[i + j] += from[i + j];
    for (; i < to.size(); ++i) to[i] += from[i];
}

/// A segment of each rank's block goes to the stage of every other, its owner adds them up, and
/// the sums come back by its stage: two waits. What is small all add up for themselves after one.
class HostStagedBaseline final : public Baseline {
public:
    explicit HostStagedBaseline(const MpiJob& job) : rank_(job.rank()), ranks_(job.size()) {
        MPI_Comm machine = MPI_COMM_NULL;
        check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL,
                                      &machine));
        int here = 0;
        MPI_Comm_size(machine, &here);
        if (here == ranks_) map(machine);
        MPI_Comm_free(&machine);
        if (here != ranks_) throw Unavailable("--peer staged needs all ranks on one host");
    }
    ~HostStagedBaseline() override { MPI_Win_free(&window_); }

    std::string_view name() const noexcept override { return "staged"; }
    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte>) override;

    void sum(std::span<const std::span<std::byte>> buffers) override {
        for (const auto bytes : buffers) {
            const Floats all(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
            if (all.size() <= small) {
                sum_small(all);
                continue;
            }
            const auto most = segment * static_cast<std::size_t>(ranks_);
            for (auto rest = all; !rest.empty();) {
                const auto part = rest.first(std::min(most, rest.size()));
                rest = rest.subspan(part.size());
                sum_large(part);
            }
        }
    }

private:
    struct Stages {
        Flag* flag;
        std::array<Floats, 2> stages;  // which take turns; the last segment of each holds sums
    };

    void map(MPI_Comm machine) {
        const auto stage = segment * static_cast<std::size_t>(ranks_ + 1);
        const auto bytes = sizeof(Flag) + 2 * stage * sizeof(float);
        void* own = nullptr;
        check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, machine,
                                          &own, &window_));
        ::new (own) Flag;
        for (int rank = 0; rank < ranks_; ++rank) {
            MPI_Aint size = 0;
            int unit = 0;
            std::byte* memory = nullptr;
            check_mpi(MPI_Win_shared_query(window_, rank, &size, &unit, &memory));
            auto* const floats = reinterpret_cast<float*>(memory + sizeof(Flag));
            peers_.push_back({reinterpret_cast<Flag*>(memory),
                              {Floats(floats, stage), Floats(floats + stage, stage)}});
        }
        check_mpi(MPI_Barrier(machine));
    }

    Floats stage(int peer) const {
        return peers_[static_cast<std::size_t>(peer)].stages[turn_ % 2];
    }
    /// The part of the peer's stage that is for that rank; for `ranks_`, its sums.
    Floats stage(int peer, int for_rank) const {
        return stage(peer).subspan(static_cast<std::size_t>(for_rank) * segment, segment);
    }

    void sum_small(Floats all) {
        ++turn_;
        copy(stage(rank_), all);
        end_round();
        copy(all, stage(0).first(all.size()));
        for (int peer = 1; peer < ranks_; ++peer) add(all, stage(peer));
    }

    void sum_large(Floats part) {
        const auto length =
            (part.size() + static_cast<std::size_t>(ranks_) - 1) / static_cast<std::size_t>(ranks_);
        const auto block = [&](int owner) {
            const auto begin = std::min(static_cast<std::size_t>(owner) * length, part.size());
            return part.subspan(begin, std::min(length, part.size() - begin));
        };
        ++turn_;
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) copy(stage(rank_, peer), block(peer));
        end_round();
        const auto own = block(rank_);
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) add(own, stage(peer, rank_));
        copy(stage(rank_, ranks_), own);
        end_round();
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) copy(block(peer), stage(peer, ranks_).first(block(peer).size()));
    }

    void end_round() {
        peers_[static_cast<std::size_t>(rank_)].flag->round.store(++round_,
                                                                  std::memory_order_release);
        constexpr int most_looks = 1000;  // before others get this rank's core
        for (const auto& peer : peers_)
            for (int looks = 0; peer.flag->round.load(std::memory_order_acquire) < round_; ++looks)
                if (looks > most_looks) std::this_thread::yield();
    }

    const int rank_, ranks_;
    MPI_Win window_ = MPI_WIN_NULL;
    std::vector<Stages> peers_;
    std::uint64_t round_ = 0;
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
