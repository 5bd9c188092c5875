#include <cstring>
#include <string>

#include "replay/step_series.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

/// A step of a library that has only sums: they start when backward is done.
class BaselineStep : public StepSeries {
public:
    BaselineStep(Baseline& baseline, const char* way, const TensorDevice* device)
        : baseline_(baseline), name_(std::string(baseline.name()) + way), device_(device) {}
    std::string_view name() const noexcept final { return name_; }
    ReduceOp op() const noexcept final { return ReduceOp::sum; }

    double step() final {
        const auto start = Clock::now();
        reduce();
        if (device_ != nullptr) device_->finish();
        return seconds_since(start);
    }

protected:
    void sum(std::span<const std::span<std::byte>> buffers) { baseline_.sum(buffers); }
    void copy(std::span<std::byte> to, std::span<const std::byte> from) {
        if (device_ != nullptr) return device_->copy(to, from);
        std::memcpy(to.data(), from.data(), from.size());
    }

private:
    virtual void reduce() = 0;

    Baseline& baseline_;
    std::string name_;
    const TensorDevice* device_;
};

class PerTensor final : public BaselineStep {
public:
    PerTensor(Baseline& baseline, const Gradients& gradients)
        : BaselineStep(baseline, "_per_tensor", gradients.device()) {
        const auto& parameters = gradients.parameters();
        for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
            gradients_.push_back(p->gradient.memory());
    }

private:
    void reduce() override { sum(gradients_); }

    std::vector<std::span<std::byte>> gradients_;
};

/// Copies gradients into a buffer until the next one does not fit, reduces it and copies them back.
/// A gradient that never fits is reduced alone, in place.
class Fused final : public BaselineStep {
public:
    Fused(Baseline& baseline, const Gradients& gradients)
        : BaselineStep(baseline, "_fused_25mb", gradients.device()),
          parameters_(gradients.parameters()),
          buffer_(25u << 20, MemoryKind::ordinary, gradients.device()) {}

private:
    void reduce() override {
        for (auto p = parameters_.rbegin(); p != parameters_.rend(); ++p) {
            const auto gradient = p->gradient.memory();
            if (used_ + gradient.size() > buffer_.all().size()) flush();
            if (gradient.size() > buffer_.all().size()) {
                sum({&gradient, 1});
                continue;
            }
            copy(buffer_.all().subspan(used_, gradient.size()), gradient);
            used_ += gradient.size();
            inside_.push_back(gradient);
        }
        flush();
    }

    void flush() {
        if (used_ == 0) return;
        const auto filled = buffer_.all().first(used_);
        sum({&filled, 1});
        auto from = buffer_.all();
        for (const auto gradient : inside_) {
            copy(gradient, from.first(gradient.size()));
            from = from.subspan(gradient.size());
        }
        used_ = 0;
        inside_.clear();
    }

    const std::vector<Parameter>& parameters_;
    Memory buffer_;
    std::size_t used_ = 0;
    std::vector<std::span<std::byte>> inside_;
};

class Flat final : public BaselineStep {
public:
    Flat(Baseline& baseline, const Gradients& gradients)
        : BaselineStep(baseline, "_flat", gradients.device()), all_(gradients.flat()) {}

private:
    void reduce() override { sum({&all_, 1}); }

    std::span<std::byte> all_;
};

}  // namespace

std::vector<std::unique_ptr<StepSeries>> make_baseline_steps(Baseline& baseline,
                                                             const Gradients& gradients) {
    std::vector<std::unique_ptr<StepSeries>> steps;
    steps.push_back(std::make_unique<PerTensor>(baseline, gradients));
    steps.push_back(std::make_unique<Fused>(baseline, gradients));
    steps.push_back(std::make_unique<Flat>(baseline, gradients));
    return steps;
}

}  // namespace guozhuang::perf
