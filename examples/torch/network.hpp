#pragma once

#include <torch/torch.h>

#include "fashion_mnist/dataset.hpp"

namespace fashion {

/// Two convolutions and two linear layers, which give the logarithm of each class's probability.
struct NetworkImpl : torch::nn::Module {
    NetworkImpl()
        : conv1(register_module("conv1", torch::nn::Conv2d(1, 10, 5))),
          conv2(register_module("conv2", torch::nn::Conv2d(10, 20, 5))),
          fc1(register_module("fc1", torch::nn::Linear(320, 50))),
          fc2(register_module("fc2", torch::nn::Linear(50, 10))) {}

    torch::Tensor forward(torch::Tensor images) {
        images = torch::relu(torch::max_pool2d(conv1->forward(images), 2));
        images = torch::relu(torch::max_pool2d(conv2->forward(images), 2));
        const auto hidden = torch::relu(fc1->forward(images.flatten(1)));
        return torch::log_softmax(fc2->forward(hidden), 1);
    }

    torch::nn::Conv2d conv1, conv2;
    torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Network);

/// The images as the network takes them; they refer to the batch.
inline torch::Tensor images_of(const Batch& batch) {
    const auto size = static_cast<std::int64_t>(batch.size());
    return torch::from_blob(const_cast<float*>(batch.images.data()), {size, 1, 28, 28});
}

inline torch::Tensor labels_of(const Batch& batch) {
    const auto size = static_cast<std::int64_t>(batch.size());
    auto* labels = const_cast<std::uint8_t*>(batch.labels.data());
    return torch::from_blob(labels, {size}, torch::kByte).to(torch::kLong);
}

inline std::int64_t count_correct(Network& network, const Batch& batch) {
    const torch::NoGradGuard no_gradients;
    const auto guesses = network->forward(images_of(batch)).argmax(1);
    return guesses.eq(labels_of(batch)).sum().item<std::int64_t>();
}

}  // namespace fashion
