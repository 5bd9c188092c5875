#include <cstdlib>
#include <guozhuang/guozhuang.hpp>
#include <guozhuang/torch.hpp>
#include <torch/torch.h>

/// A user's program: one step of a layer whose gradient is rank + 1, on as many ranks as its
/// argument says, or one.
int main(int argc, char** argv) {
    const guozhuang::Session session(&argc, &argv);
    const int ranks = argc > 1 ? std::atoi(argv[1]) : 1;
    torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
    torch::nn::init::zeros_(layer->weight);
    torch::optim::SGD sgd(layer->parameters(), torch::optim::SGDOptions(1));
    guozhuang::torch::DistributedOptimizer optimizer(sgd, *layer);
    layer->forward(torch::full({1, 1}, session.rank() + 1.0F)).backward();
    const bool has_stepped = optimizer.step();
    const float expected = -static_cast<float>(ranks + 1) / 2;
    const bool is_right = layer->weight.item<float>() == expected;
    return has_stepped && is_right && session.size() == ranks ? EXIT_SUCCESS : EXIT_FAILURE;
}
