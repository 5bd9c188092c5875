#include "baselines/baseline.hpp"

namespace guozhuang::perf {
namespace {

/// A case of MPI's between pinned buffers, and the copies to them and from them.
class StagedSeries final : public Series {
public:
    StagedSeries(const TensorDevice& device, Baseline& mpi, const Case& test,
                 std::span<std::byte> input, std::span<std::byte> output)
        : device_(device),
          input_(input.first(test.input_count() * size_of(test.dtype))),
          pinned_input_(device.allocate_pinned(test.bytes())),
          pinned_output_(device.allocate_pinned(output.size())),
          mpi_(mpi.series(test, pinned_input_.memory, pinned_output_.memory)) {
        const auto result = mpi_->result();
        const bool in_place = result.data() == pinned_input_.memory.data();
        result_ = (in_place ? input : output).first(result.size());
    }

    std::string_view name() const noexcept override { return "staged"; }

    void run() override {
        device_.copy(pinned_input_.memory.first(input_.size()), input_);
        device_.finish();
        mpi_->run();
        device_.copy(result_, mpi_->result());
        device_.finish();
    }

    std::span<const std::byte> result() const override { return result_; }

private:
    const TensorDevice& device_;
    std::span<std::byte> input_, result_;  // on the device
    device::OwnedMemory pinned_input_, pinned_output_;
    std::unique_ptr<Series> mpi_;
};

class StagedBaseline final : public Baseline {
public:
    StagedBaseline(const MpiJob& job, const TensorDevice& device)
        : device_(device), mpi_(make_mpi_baseline(job, nullptr)) {}

    std::string_view name() const noexcept override { return "staged"; }

    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte> output) override {
        return std::make_unique<StagedSeries>(device_, *mpi_, test, input, output);
    }

    void sum(std::span<const std::span<std::byte>> buffers) override {
        for (const auto buffer : buffers) {
            if (pinned_.memory.size() < buffer.size())
                pinned_ = device_.allocate_pinned(buffer.size());
            const auto staged = pinned_.memory.first(buffer.size());
            device_.copy(staged, buffer);
            device_.finish();
            mpi_->sum({&staged, 1});
            device_.copy(buffer, staged);
            device_.finish();
        }
    }

private:
    const TensorDevice& device_;
    std::unique_ptr<Baseline> mpi_;
    device::OwnedMemory pinned_;  // as large as any buffer so far
};

}  // namespace

std::unique_ptr<Baseline> make_staged_baseline(const MpiJob& job, const TensorDevice* device) {
    if (device == nullptr) return make_host_staged_baseline(job);
    return std::make_unique<StagedBaseline>(job, *device);
}

}  // namespace guozhuang::perf
