#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layers.hpp"

namespace transformer {

/// How large a model is, and what it does.
struct Size {
    std::size_t tokens = 256;   ///< different ones: bytes
    std::size_t length = 64;    ///< tokens in a sequence
    std::size_t width = 64;     ///< numbers for each token; `heads` divides it
    std::size_t heads = 4;      ///< of attention
    std::size_t layers = 2;     ///< blocks
    std::size_t classes = 256;  ///< that the model chooses from
    /// A GPT, which predicts the next token at each position from those before it; false: an
    /// encoder like BERT, which sees the whole sequence and gives it one class.
    bool causal = true;
};

/// Some sequences. For a GPT there is a target for each token, for an encoder one for each
/// sequence.
struct Batch {
    std::vector<std::uint8_t> tokens;  ///< [sequences, length]
    std::vector<std::size_t> lengths;  ///< of each sequence, without its padding; empty: full
    std::vector<int> targets;          ///< classes; negative ones count for nothing
};

/// Tokens and positions are embedded, go through the blocks, and a linear layer gives each class a
/// score.
class Model {
public:
    Model(const Size& size, std::uint32_t seed);
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    /// In forward order, side by side in memory. They live as long as the model.
    std::vector<Tensor> parameters() const { return store_.tensors(); }

    /// Forward and backward: overwrites all gradients with those of the batch's mean loss, which it
    /// returns.
    double backward(const Batch& batch, const GradientCallback& on_gradient = {});
    /// The batch's mean loss, and in `correct`, if given, how many of its targets have the highest
    /// score.
    double loss(const Batch& batch, std::size_t* correct = nullptr);
    /// Continues a text by so many bytes, each drawn by its probability. For a GPT.
    std::string sample(std::string text, std::size_t bytes, std::uint32_t seed);

    const Size& size() const noexcept { return size_; }

private:
    Sequences sequences_of(const Batch& batch) const;
    void embed(const Batch& batch);
    void embed_backward(const Batch& batch);
    void forward(const Batch& batch);
    void pool(const Sequences& sequences);
    void pool_backward(const Sequences& sequences);

    Size size_;
    Store store_;
    Tensor token_table_, position_table_;
    std::vector<Block> blocks_;
    LayerNorm norm_;
    Linear head_;
    std::vector<float> hidden_;    ///< [rows, width]
    std::vector<float> features_;  ///< what the head sees: [rows or sequences, width]
    std::vector<float> scores_, features_gradient_, hidden_gradient_;
};

}  // namespace transformer
