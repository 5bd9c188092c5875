#include <mpi.h>

#include <cstring>

#include "job.hpp"
#include "mpi_types.hpp"
#include "statistics.hpp"
#include "step_series.hpp"

namespace guozhuang::perf {
namespace {

void sum_in_place(std::span<std::byte> floats) {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, floats.data(), mpi_count(floats.size() / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

/// A plain MPI program: it starts when backward is done.
class MpiStep : public StepSeries {
public:
    ReduceOp op() const noexcept final { return ReduceOp::sum; }

    double step() final {
        const auto start = Clock::now();
        reduce();
        return seconds_since(start);
    }

private:
    virtual void reduce() = 0;
};

class PerTensor final : public MpiStep {
public:
    explicit PerTensor(const Gradients& gradients) : parameters_(gradients.parameters()) {}
    std::string_view name() const noexcept override { return "mpi_per_tensor"; }

private:
    void reduce() override {
        for (auto p = parameters_.rbegin(); p != parameters_.rend(); ++p) sum_in_place(p->gradient.memory());
    }

    const std::vector<Parameter>& parameters_;
};

/// Copies gradients into a buffer until the next does not fit, reduces it and copies them back. One that never fits goes alone, in place.
class Fused final : public MpiStep {
public:
    explicit Fused(const Gradients& gradients) : parameters_(gradients.parameters()), buffer_(25u << 20) {}
    std::string_view name() const noexcept override { return "mpi_fused_25mb"; }

private:
    void reduce() override {
        for (auto p = parameters_.rbegin(); p != parameters_.rend(); ++p) {
            const auto gradient = p->gradient.memory();
            if (used_ + gradient.size() > buffer_.all().size()) flush();
            if (gradient.size() > buffer_.all().size()) {
                sum_in_place(gradient);
                continue;
            }
            std::memcpy(buffer_.all().data() + used_, gradient.data(), gradient.size());
            used_ += gradient.size();
            inside_.push_back(gradient);
        }
        flush();
    }

    void flush() {
        if (used_ == 0) return;
        sum_in_place(buffer_.all().first(used_));
        const std::byte* from = buffer_.all().data();
        for (const auto gradient : inside_) {
            std::memcpy(gradient.data(), from, gradient.size());
            from += gradient.size();
        }
        used_ = 0;
        inside_.clear();
    }

    const std::vector<Parameter>& parameters_;
    Memory buffer_;
    std::size_t used_ = 0;
    std::vector<std::span<std::byte>> inside_;
};

class Flat final : public MpiStep {
public:
    explicit Flat(const Gradients& gradients) : all_(gradients.flat()) {}
    std::string_view name() const noexcept override { return "mpi_flat"; }

private:
    void reduce() override { sum_in_place(all_); }

    std::span<std::byte> all_;
};

}  // namespace

std::vector<std::unique_ptr<StepSeries>> make_mpi_steps(const Gradients& gradients) {
    std::vector<std::unique_ptr<StepSeries>> steps;
    steps.push_back(std::make_unique<PerTensor>(gradients));
    steps.push_back(std::make_unique<Fused>(gradients));
    steps.push_back(std::make_unique<Flat>(gradients));
    return steps;
}

}  // namespace guozhuang::perf
