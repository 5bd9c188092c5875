// gz-perf-gloo: gz-perf with one more baseline, Gloo as PyTorch's DistributedDataParallel uses it
// on CPUs, through c10d.

#include <array>
#include <stdexcept>

#include "group.hpp"
#include "program.hpp"

namespace guozhuang::perf {
namespace {

Floats floats_in(std::span<std::byte> buffer) {
    return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

class GlooSeries final : public Series {
public:
    GlooSeries(GlooGroup& group, std::span<std::byte> buffer)
        : group_(group), buffer_(buffer), floats_{floats_in(buffer)} {}
    std::string_view name() const noexcept override { return "gloo"; }
    void run() override { group_.sum(floats_); }
    std::span<const std::byte> result() const override { return buffer_; }

private:
    GlooGroup& group_;
    std::span<std::byte> buffer_;
    std::vector<Floats> floats_;
};

class GlooBaseline final : public Baseline {
public:
    explicit GlooBaseline(const MpiJob& job) : group_(job.rank(), job.size()) {
        std::uint16_t port = 0;
        job.all_or_none([&] {
            if (job.first()) port = group_.serve();
        });
        port = static_cast<std::uint16_t>(job.of_first(port));
        job.all_or_none([&] { group_.join(port); });
    }

    std::string_view name() const noexcept override { return "gloo"; }

    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte>) override {
        if (test.collective != Collective::allreduce || test.dtype != DType::f32 ||
            test.op != ReduceOp::sum)
            throw std::invalid_argument("--peer gloo: only allreduce is compared, in sums of f32");
        return std::make_unique<GlooSeries>(group_, input.first(test.bytes()));
    }

    void sum(std::span<const std::span<std::byte>> buffers) override {
        std::vector<Floats> all;
        for (const auto buffer : buffers) all.push_back(floats_in(buffer));
        group_.sum(all);
    }

private:
    GlooGroup group_;
};

std::unique_ptr<Baseline> make_gloo_baseline(const MpiJob& job, const TensorDevice* device) {
    if (device != nullptr) throw Refusal("--peer gloo: only tensors on the host are compared");
    return std::make_unique<GlooBaseline>(job);
}

}  // namespace
}  // namespace guozhuang::perf

int main(int argc, char** argv) {
    using namespace guozhuang::perf;
    static constexpr std::array baselines{BaselineKind{"gloo", make_gloo_baseline},
                                          BaselineKind{"mpi", make_mpi_baseline}};
    return run_program("gz-perf-gloo", baselines, argc, argv);
}
