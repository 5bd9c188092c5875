// The reducer takes the current stream. There is no GPU: a stream that is current on a device
// without gradients is refused by whoever asks for it.
#include "bindings/torch/models.hpp"

using namespace models;

namespace {

std::string error_of(const std::function<void()>& act) {
    const gz::StreamRef elsewhere{{gz::DeviceKind::cuda, 7}, nullptr};
    gz::torch::detail::fake_stream = elsewhere;
    std::string text;
    try {
        act();
    } catch (const std::exception& error) {
        text = error.what();
    }
    gz::torch::detail::fake_stream.reset();
    return text;
}

void streams_that_are_current(Session&, Report& report) {
    torch::manual_seed(3);
    const torch::nn::Linear layer(1, 3);
    torch::optim::SGD sgd(layer->parameters(), torch::optim::SGDOptions(0.1));
    gz::torch::DistributedOptimizer optimizer(sgd, *layer);
    const auto backward = [&] {
        optimizer.zero_grad();
        torch::nn::Linear(layer)->forward(torch::ones({2, 1})).sum().backward();
    };
    const auto expect_asked = [&](const std::string& who, const std::function<void()>& act) {
        const auto error = error_of(act);
        report.expect(error.find("no gradient is on cuda 7") != std::string::npos,
                      text_of(who, " has not asked for the current stream: '", error, "'"));
    };
    expect_asked("a mark", backward);
    optimizer.discard("a gradient was not marked");
    backward();
    expect_asked("a wait", [&] { optimizer.synchronize(); });
    backward();
    expect_asked("a step", [&] { optimizer.step(); });
    optimizer.step();
}

}  // namespace

TEST_CASE("every mark, wait and step asks for PyTorch's current stream") {
    CHECK(problems_here(streams_that_are_current) == "");
}
