#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dataset.hpp"

namespace fashion {

/// A trainable tensor: contiguous floats and, as many, their gradient.
struct Tensor {
    std::string name;
    std::span<float> value;
    std::span<float> gradient;
};

/// Told the position in Model::parameters() of each gradient as soon as it is final.
using GradientCallback = std::function<void(std::size_t)>;

/// A fully connected layer: outputs = inputs * weight + bias, weight [inputs, outputs] row-major.
class Dense {
public:
    Dense(std::string name, std::size_t inputs, std::size_t outputs, std::mt19937& random);

    /// [batch, inputs] -> [batch, outputs].
    void forward(std::span<const float> in, std::span<float> out) const;
    /// From the gradient of the loss by the outputs: writes those by weight and bias.
    void backward_parameters(std::span<const float> in, std::span<const float> out_gradient);
    /// And that by the inputs.
    void backward_inputs(std::span<const float> out_gradient, std::span<float> in_gradient);

    std::size_t outputs() const noexcept { return bias_.size(); }
    void append_parameters(std::vector<Tensor>& parameters);

private:
    std::string name_;
    std::size_t inputs_;
    std::vector<float> weight_, weight_gradient_, weight_transposed_;
    std::vector<float> bias_, bias_gradient_;
};

/// A multi-layer perceptron, 784 -> 256 -> 128 -> 10, with tanh between and softmax cross-entropy
/// at the end.
class Model {
public:
    explicit Model(std::uint64_t seed);

    /// The layers' tensors, in forward order. They live as long as the model.
    std::vector<Tensor> parameters();

    /// Forward and backward: overwrites all gradients with those of the batch's mean loss, which it
    /// returns.
    double backward(const Batch& batch, const GradientCallback& on_gradient = {});

    /// How many samples of the batch are assigned their true class.
    std::size_t count_correct(const Batch& batch);

private:
    void forward(const Batch& batch);

    std::vector<Dense> layers_;
    std::vector<std::vector<float>> activations_;  ///< of each layer
    std::vector<std::vector<float>> gradients_;    ///< of the loss by them
};

}  // namespace fashion
