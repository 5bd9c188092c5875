#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace transformer {
namespace {

std::size_t count_of(const Size& size) {
    return (size.tokens + size.length) * size.width + size.layers * Block::count(size.width) +
           LayerNorm::count(size.width) + Linear::count(size.width, size.classes);
}

constexpr float embedding_deviation = 0.1F;
constexpr std::size_t tensors_of_block = 12;

}  // namespace

Model::Model(const Size& size, std::uint32_t seed)
    : size_(size),
      store_(count_of(size), seed),
      token_table_(store_.take("tokens", size.tokens * size.width, 0, embedding_deviation)),
      position_table_(store_.take("positions", size.length * size.width, 0, embedding_deviation)),
      blocks_([&] {
          std::vector<Block> blocks;
          for (std::size_t i = 0; i < size.layers; ++i)
              blocks.emplace_back(store_, "block" + std::to_string(i), size.width, size.heads,
                                  size.causal);
          return blocks;
      }()),
      norm_(store_, "norm", size.width),
      head_(store_, "head", size.width, size.classes) {}

Sequences Model::sequences_of(const Batch& batch) const {
    return {batch.tokens.size() / size_.length, size_.length, batch.lengths};
}

void Model::embed(const Batch& batch) {
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
        const auto* token = &token_table_.value[batch.tokens[row] * size_.width];
        const auto* position = &position_table_.value[row % size_.length * size_.width];
        for (std::size_t i = 0; i < size_.width; ++i)
            hidden_[row * size_.width + i] = token[i] + position[i];
    }
}

void Model::embed_backward(const Batch& batch) {
    std::ranges::fill(token_table_.gradient, 0.0F);
    std::ranges::fill(position_table_.gradient, 0.0F);
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
        auto* token = &token_table_.gradient[batch.tokens[row] * size_.width];
        auto* position = &position_table_.gradient[row % size_.length * size_.width];
        for (std::size_t i = 0; i < size_.width; ++i) {
            token[i] += hidden_gradient_[row * size_.width + i];
            position[i] += hidden_gradient_[row * size_.width + i];
        }
    }
}

/// For an encoder: the mean of each sequence's rows, without its padding.
void Model::pool(const Sequences& sequences) {
    const auto width = size_.width;
    std::vector<float> means(sequences.batch * width);
    for (std::size_t i = 0; i < sequences.batch; ++i) {
        const auto length = sequences.length_of(i);
        for (std::size_t row = i * size_.length; row < i * size_.length + length; ++row)
            for (std::size_t j = 0; j < width; ++j)
                means[i * width + j] += features_[row * width + j] / static_cast<float>(length);
    }
    features_ = std::move(means);
}

void Model::pool_backward(const Sequences& sequences) {
    const auto width = size_.width;
    std::vector<float> gradient(sequences.rows() * width);
    for (std::size_t i = 0; i < sequences.batch; ++i) {
        const auto length = sequences.length_of(i);
        for (std::size_t row = i * size_.length; row < i * size_.length + length; ++row)
            for (std::size_t j = 0; j < width; ++j)
                gradient[row * width + j] =
                    features_gradient_[i * width + j] / static_cast<float>(length);
    }
    features_gradient_ = std::move(gradient);
}

void Model::forward(const Batch& batch) {
    const auto sequences = sequences_of(batch);
    hidden_.resize(sequences.rows() * size_.width);
    features_.resize(hidden_.size());
    embed(batch);
    for (auto& block : blocks_) block.forward(sequences, hidden_);
    norm_.forward(hidden_, features_);
    if (!size_.causal) pool(sequences);
    scores_.resize(features_.size() / size_.width * size_.classes);
    head_.forward(features_, scores_);
}

double Model::backward(const Batch& batch, const GradientCallback& on_gradient) {
    std::size_t left = store_.tensors().size();
    const auto done = [&](std::size_t tensors) {
        for (; tensors > 0; --tensors) {
            --left;
            if (on_gradient) on_gradient(left);
        }
    };
    forward(batch);
    const auto sequences = sequences_of(batch);
    const double loss = softmax_cross_entropy(scores_, batch.targets);
    features_gradient_.resize(features_.size());
    head_.backward(features_, scores_, features_gradient_);
    done(2);
    if (!size_.causal) pool_backward(sequences);
    hidden_gradient_.assign(hidden_.size(), 0);
    norm_.backward(features_gradient_, hidden_gradient_);
    done(2);
    for (std::size_t i = blocks_.size(); i-- > 0;) {
        blocks_[i].backward(sequences, hidden_gradient_);
        done(tensors_of_block);
    }
    embed_backward(batch);
    done(2);
    return loss;
}

double Model::loss(const Batch& batch, std::size_t* correct) {
    forward(batch);
    for (std::size_t i = 0; correct != nullptr && i < batch.targets.size(); ++i) {
        const auto row = std::span(scores_).subspan(i * size_.classes, size_.classes);
        if (std::ranges::max_element(row) - row.begin() == batch.targets[i]) ++*correct;
    }
    return softmax_cross_entropy(scores_, batch.targets);
}

std::string Model::sample(std::string text, std::size_t bytes, std::uint32_t seed) {
    std::mt19937 random(seed);
    for (; bytes > 0; --bytes) {
        const auto seen = std::min(text.size(), size_.length);
        Batch batch{
            std::vector<std::uint8_t>(text.end() - static_cast<std::ptrdiff_t>(seen), text.end()),
            {},
            {}};
        batch.tokens.resize(size_.length);  // what comes later does not change what comes before
        forward(batch);
        const auto row = std::span(scores_).subspan((seen - 1) * size_.classes, size_.classes);
        const float largest = *std::ranges::max_element(row);
        std::ranges::transform(row, row.begin(),
                               [=](float score) { return std::exp(score - largest); });
        text.push_back(
            static_cast<char>(std::discrete_distribution<int>(row.begin(), row.end())(random)));
    }
    return text;
}

}  // namespace transformer
