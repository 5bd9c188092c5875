#include <guozhuang/info.hpp>
#include <guozhuang/optimizer.hpp>

#include "replay/step_series.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

struct NoOptimizer {
    void step() {}
};

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

    std::optional<Sent> sent() const override {
        const auto [bytes, messages] = traffic();
        return Sent{bytes, messages};
    }

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

}  // namespace

std::unique_ptr<StepSeries> make_guozhuang_step(const Gradients& gradients) {
    return std::make_unique<GuozhuangStep>(gradients);
}

}  // namespace guozhuang::perf
