#include <guozhuang/info.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/optimizer.hpp>
#include <ranges>

#include "replay/step_series.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

struct NoOptimizer {
    void step() {}
};

Sent sent_so_far() {
    const auto [bytes, messages] = traffic();
    return {bytes, messages};
}

class GuozhuangStep final : public StepSeries {
public:
    explicit GuozhuangStep(const Gradients& gradients)
        : parameters_(gradients.parameters().size()),
          device_(gradients.device()),
          optimizer_(nothing_, gradients.parameters(), options_of(device_)) {}

    std::string_view name() const noexcept override { return "guozhuang"; }
    ReduceOp op() const noexcept override { return ReduceOp::average; }

    double step() override {
        const auto hook = optimizer_.on_gradient();
        for (std::size_t i = parameters_; i-- > 0;) hook(i);
        const auto backward_done = Clock::now();
        optimizer_.step();
        if (device_ != nullptr) device_->finish();
        return seconds_since(backward_done);
    }

    std::optional<Sent> sent() const override { return sent_so_far(); }

private:
    static OptimizerOptions options_of(const TensorDevice* device) {
        if (device == nullptr) return {.name = "gz-perf"};
        return {.name = "gz-perf on a device", .stream = device->stream()};
    }

    std::size_t parameters_;
    const TensorDevice* device_;
    NoOptimizer nothing_;
    DistributedOptimizer<NoOptimizer> optimizer_;
};

class GuozhuangCalls final : public StepSeries {
public:
    explicit GuozhuangCalls(const Gradients& gradients) : device_(gradients.device()) {
        for (const auto& parameter : gradients.parameters() | std::views::reverse) {
            auto& [tensor, options] = calls_.emplace_back(Call{parameter.gradient, {}});
            options = {.name = parameter.name, .op = op()};
            if (device_ != nullptr) options.stream = device_->stream();
        }
        handles_.reserve(calls_.size());
    }

    std::string_view name() const noexcept override { return "guozhuang_calls"; }
    ReduceOp op() const noexcept override { return ReduceOp::average; }

    double step() override {
        for (const auto& [tensor, options] : calls_)
            handles_.push_back(allreduce_async(tensor, options));
        const auto backward_done = Clock::now();
        for (const auto& handle : handles_) handle.wait();
        handles_.clear();
        return seconds_since(backward_done);
    }

    std::optional<Sent> sent() const override { return sent_so_far(); }

private:
    struct Call {
        TensorView tensor;
        AllreduceOptions options;
    };
    const TensorDevice* device_;
    std::vector<Call> calls_;
    std::vector<Handle> handles_;
};

}  // namespace

std::unique_ptr<StepSeries> make_guozhuang_step(const Gradients& gradients) {
    return std::make_unique<GuozhuangStep>(gradients);
}

std::unique_ptr<StepSeries> make_guozhuang_calls(const Gradients& gradients) {
    return std::make_unique<GuozhuangCalls>(gradients);
}

}  // namespace guozhuang::perf
