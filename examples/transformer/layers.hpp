#pragma once

#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace transformer {

/// A trainable tensor: contiguous floats and, as many, their gradient.
struct Tensor {
    std::string name;
    std::span<float> value;
    std::span<float> gradient;
};

/// Told the position in the model's parameters() of each gradient as soon as it is final.
using GradientCallback = std::function<void(std::size_t)>;

/// The values of a model's tensors, side by side in one array, and their gradients in another.
class Store {
public:
    Store(std::size_t count, std::uint32_t seed)
        : values_(count), gradients_(count), random_(seed) {}

    /// The next `count` floats, drawn from a normal distribution of that deviation, or all equal to
    /// `mean`.
    Tensor take(std::string name, std::size_t count, float mean, float deviation);
    /// In the order in which they were taken.
    const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
    std::size_t count() const noexcept { return values_.size(); }

private:
    std::vector<float> values_, gradients_;
    std::mt19937 random_;
    std::vector<Tensor> tensors_;
    std::size_t taken_ = 0;
};

/// out = in * weight + bias; in [rows, inputs], weight [inputs, outputs], all row-major. Like all
/// layers here, backward() overwrites the gradients of the layer's tensors.
class Linear {
public:
    Linear(Store& store, const std::string& name, std::size_t inputs, std::size_t outputs);
    static std::size_t count(std::size_t inputs, std::size_t outputs) {
        return (inputs + 1) * outputs;
    }

    void forward(std::span<const float> in, std::span<float> out) const;
    /// `in_gradient` may be empty.
    void backward(std::span<const float> in, std::span<const float> out_gradient,
                  std::span<float> in_gradient);

private:
    std::size_t inputs_, outputs_;
    Tensor weight_, bias_;
};

/// Each row is shifted and scaled to mean 0 and deviation 1, then by the layer's tensors (J. L. Ba
/// et al., "Layer Normalization", 2016).
class LayerNorm {
public:
    LayerNorm(Store& store, const std::string& name, std::size_t width);
    static std::size_t count(std::size_t width) { return 2 * width; }

    void forward(std::span<const float> in, std::span<float> out);
    /// Adds to `in_gradient`: a residual connection goes around the layer.
    void backward(std::span<const float> out_gradient, std::span<float> in_gradient);

private:
    std::size_t width_;
    Tensor gain_, bias_;
    std::vector<float> normal_, scales_;  ///< of the last forward()
};

/// Sequences of equal length, in one batch.
struct Sequences {
    std::size_t batch, length;
    /// The tokens of each sequence that count; the rest is padding, which nothing attends to.
    /// Empty: all.
    std::span<const std::size_t> lengths = {};
    std::size_t rows() const noexcept { return batch * length; }
    std::size_t length_of(std::size_t sequence) const {
        return lengths.empty() ? length : lengths[sequence];
    }
};

/// One layer of a transformer that normalises before its parts (A. Vaswani et al., "Attention Is
/// All You Need", 2017; A. Radford et al., "Language Models are Unsupervised Multitask Learners",
/// 2019): x += attention(norm(x)), then x += mlp(norm(x)).
class Block {
public:
    /// `causal`: each token attends to itself and those before it only.
    Block(Store& store, const std::string& name, std::size_t width, std::size_t heads, bool causal);
    static std::size_t count(std::size_t width) {
        return 2 * LayerNorm::count(width) + Linear::count(width, 3 * width) +
               Linear::count(width, width) + Linear::count(width, 4 * width) +
               Linear::count(4 * width, width);
    }

    /// `x` [rows, width], in place.
    void forward(const Sequences& sequences, std::span<float> x);
    /// Turns the gradient of the loss by the output into that by the input, in place.
    void backward(const Sequences& sequences, std::span<float> gradient);

private:
    void attention(const Sequences& sequences);
    void attention_backward(const Sequences& sequences);

    std::size_t width_, heads_;
    bool causal_;
    LayerNorm norm1_;
    Linear to_heads_, from_heads_;  ///< queries, keys and values [rows, 3 width], and back
    LayerNorm norm2_;
    Linear up_, down_;
    std::vector<float> normal1_, qkv_, weights_, attended_, normal2_, inner_, active_;
    std::vector<float> qkv_gradient_, wide_gradient_, narrow_gradient_;
};

/// Scores [rows, classes] to the gradient, by them, of their mean cross-entropy, in place; returns
/// that mean. Negative targets count for nothing.
double softmax_cross_entropy(std::span<float> scores, std::span<const int> targets);

}  // namespace transformer
