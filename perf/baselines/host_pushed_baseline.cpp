#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "baselines/baseline.hpp"
#include "baselines/host_window.hpp"

namespace guozhuang::perf {
namespace {

using Floats = std::span<float>;

/// Floats: 8 KiB, which stay in the first-level cache until they are pushed.
constexpr std::size_t tile = 2 * 1024;

Floats floats_in(std::span<std::byte> bytes) {
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

/// Sums in memory of its own that all ranks have mapped: each rank adds up its share from all
/// ranks' tensors, and writes the sums into all of them.
class PushedSeries final : public Series {
public:
    PushedSeries(const MpiJob& job, HostRounds& rounds, std::span<const std::byte> input)
        : job_(job), rounds_(rounds), input_(input), tensors_(job, input.size()) {}
    std::string_view name() const noexcept override { return "pushed"; }
    std::span<const std::byte> result() const override { return tensors_.part(job_.rank()); }
    void prepare() override {
        std::memcpy(tensors_.part(job_.rank()).data(), input_.data(), input_.size());
    }

    void run() override {
        rounds_.end_round();
        const auto rank = static_cast<std::size_t>(job_.rank()),
                   ranks = static_cast<std::size_t>(job_.size());
        const auto own = floats_in(tensors_.part(job_.rank()));
        const auto end = own.size() * (rank + 1) / ranks;
        for (auto at = own.size() * rank / ranks; at < end; at += tile)
            push(own.subspan(at, std::min(tile, end - at)), at);
        rounds_.end_round();
    }

private:
    void push(Floats sums, std::size_t at) {
        for_each_other([&](Floats tensor) { add_floats(sums, tensor.subspan(at, sums.size())); });
        for_each_other([&](Floats tensor) {
            std::memcpy(tensor.subspan(at).data(), sums.data(), sums.size_bytes());
        });
    }
    template <class Act>
    void for_each_other(const Act& act) {
        for (int peer = 0; peer < job_.size(); ++peer)
            if (peer != job_.rank()) act(floats_in(tensors_.part(peer)));
    }

    const MpiJob& job_;
    HostRounds& rounds_;
    std::span<const std::byte> input_;
    HostWindow tensors_;
};

class PushedBaseline final : public Baseline {
public:
    explicit PushedBaseline(const MpiJob& job) : job_(job), rounds_(job) {}
    std::string_view name() const noexcept override { return "pushed"; }
    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte>) override {
        if (test.collective != Collective::allreduce || test.dtype != DType::f32 ||
            test.op != ReduceOp::sum)
            throw std::invalid_argument("--peer pushed has only sums of f32 by allreduce");
        return std::make_unique<PushedSeries>(job_, rounds_, input.first(test.bytes()));
    }
    void sum(std::span<const std::span<std::byte>>) override {
        throw Refusal("--peer pushed has only sums of f32 by allreduce");
    }

private:
    const MpiJob& job_;
    HostRounds rounds_;
};

}  // namespace

std::unique_ptr<Baseline> make_pushed_baseline(const MpiJob& job, const TensorDevice* device) {
    if (device != nullptr) throw Refusal("--peer pushed is for tensors on the host");
    return std::make_unique<PushedBaseline>(job);
}

}  // namespace guozhuang::perf
