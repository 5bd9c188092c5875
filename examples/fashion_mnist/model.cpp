#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fashion {
namespace {

/// The left factor of a product: element (row, k) is values[row * row_step + k * k_step]; so a
/// transposed matrix needs no copy.
struct Left {
    std::span<const float> values;
    std::size_t row_step;
    std::size_t k_step;

    float at(std::size_t row, std::size_t k) const noexcept {
        return values[row * row_step + k * k_step];
    }
};

/// c += a * b, with b [depth, columns] and c [rows, columns] row-major. Four rows of b at a time,
/// so that the inner loop runs over contiguous memory (compilers vectorise it) and c is loaded and
/// stored a quarter as often. Sums are taken in the order of depth, always.
void multiply_add(const Left& a, std::span<const float> b, std::span<float> c,
                  std::size_t columns) {
    const auto depth = b.size() / columns;
    for (std::size_t row = 0; row * columns < c.size(); ++row) {
        float* out = &c[row * columns];
        std::size_t k = 0;
        for (; k + 4 <= depth; k += 4) {
            const float a0 = a.at(row, k), a1 = a.at(row, k + 1), a2 = a.at(row, k + 2),
                        a3 = a.at(row, k + 3);
            const float* b0 = &b[k * columns];
            const float *b1 = b0 + columns, *b2 = b1 + columns, *b3 = b2 + columns;
            for (std::size_t j = 0; j < columns; ++j)
                out[j] = out[j] + a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
        }
        for (; k < depth; ++k) {
            for (std::size_t j = 0; j < columns; ++j) out[j] += a.at(row, k) * b[k * columns + j];
        }
    }
}

/// Scores to the gradient of the mean loss by them, in place; returns that loss.
double softmax_cross_entropy(std::span<float> scores, std::span<const std::uint8_t> labels) {
    const auto scale = 1.0F / static_cast<float>(labels.size());
    double loss = 0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
        const auto row = scores.subspan(i * classes, classes);
        const float largest = *std::max_element(row.begin(), row.end());
        float sum = 0;
        for (float& score : row) sum += score = std::exp(score - largest);
        loss -= std::log(static_cast<double>(row[labels[i]] / sum) + 1e-30);
        for (float& score : row) score *= scale / sum;
        row[labels[i]] -= scale;
    }
    return loss / static_cast<double>(labels.size());
}

/// Smooth, unlike a rectifier, whose slope jumps at zero: so what rounding makes differ between two
/// runs stays as small as it began.
void activate(std::span<float> values) {
    for (float& value : values) value = std::tanh(value);
}

void activate_backward(std::span<const float> outputs, std::span<float> gradient) {
    for (std::size_t i = 0; i < outputs.size(); ++i) gradient[i] *= 1 - outputs[i] * outputs[i];
}

}  // namespace

Dense::Dense(std::string name, std::size_t inputs, std::size_t outputs, std::mt19937& random)
    : name_(std::move(name)),
      inputs_(inputs),
      weight_(inputs * outputs),
      weight_gradient_(weight_.size()),
      weight_transposed_(weight_.size()),
      bias_(outputs),
      bias_gradient_(outputs) {
    // Y. LeCun et al., "Efficient BackProp", 1998: variance 1 / inputs keeps the activations' scale
    // from layer to layer.
    const double limit = std::sqrt(3.0 / static_cast<double>(inputs));
    for (float& weight : weight_)
        weight = static_cast<float>(limit * (static_cast<double>(random()) / 0x1p31 - 1));
}

void Dense::forward(std::span<const float> in, std::span<float> out) const {
    for (std::size_t i = 0; i < out.size(); i += outputs())
        std::copy(bias_.begin(), bias_.end(), &out[i]);
    multiply_add({in, inputs_, 1}, weight_, out, outputs());
}

void Dense::backward_parameters(std::span<const float> in, std::span<const float> out_gradient) {
    std::fill(weight_gradient_.begin(), weight_gradient_.end(), 0.0F);
    multiply_add({in, 1, inputs_}, out_gradient, weight_gradient_, outputs());
    std::fill(bias_gradient_.begin(), bias_gradient_.end(), 0.0F);
    for (std::size_t i = 0; i < out_gradient.size(); i += outputs()) {
        for (std::size_t j = 0; j < outputs(); ++j) bias_gradient_[j] += out_gradient[i + j];
    }
}

void Dense::backward_inputs(std::span<const float> out_gradient, std::span<float> in_gradient) {
    for (std::size_t i = 0; i < inputs_; ++i) {
        for (std::size_t j = 0; j < outputs(); ++j)
            weight_transposed_[j * inputs_ + i] = weight_[i * outputs() + j];
    }
    std::fill(in_gradient.begin(), in_gradient.end(), 0.0F);
    multiply_add({out_gradient, outputs(), 1}, weight_transposed_, in_gradient, inputs_);
}

void Dense::append_parameters(std::vector<Tensor>& parameters) {
    parameters.push_back({name_ + ".weight", weight_, weight_gradient_});
    parameters.push_back({name_ + ".bias", bias_, bias_gradient_});
}

Model::Model(std::uint64_t seed) {
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    layers_.emplace_back("hidden1", image_pixels, 256, random);
    layers_.emplace_back("hidden2", 256, 128, random);
    layers_.emplace_back("output", 128, classes, random);
    activations_.resize(layers_.size());
    gradients_.resize(layers_.size());
}

std::vector<Tensor> Model::parameters() {
    std::vector<Tensor> parameters;
    for (auto& layer : layers_) layer.append_parameters(parameters);
    return parameters;
}

void Model::forward(const Batch& batch) {
    std::span<const float> in = batch.images;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        activations_[i].resize(batch.size() * layers_[i].outputs());
        layers_[i].forward(in, activations_[i]);
        if (i + 1 < layers_.size()) activate(activations_[i]);
        in = activations_[i];
    }
}

double Model::backward(const Batch& batch, const GradientCallback& on_gradient) {
    forward(batch);
    gradients_.back() = activations_.back();
    const double loss = softmax_cross_entropy(gradients_.back(), batch.labels);
    for (std::size_t i = layers_.size(); i-- > 0;) {
        layers_[i].backward_parameters(
            i == 0 ? std::span(batch.images) : std::span<const float>(activations_[i - 1]),
            gradients_[i]);
        if (on_gradient) {
            on_gradient(2 * i + 1);
            on_gradient(2 * i);
        }
        if (i == 0) break;
        gradients_[i - 1].resize(activations_[i - 1].size());
        layers_[i].backward_inputs(gradients_[i], gradients_[i - 1]);
        activate_backward(activations_[i - 1], gradients_[i - 1]);
    }
    return loss;
}

std::size_t Model::count_correct(const Batch& batch) {
    forward(batch);
    std::size_t correct = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const auto scores = std::span(activations_.back()).subspan(i * classes, classes);
        const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
        if (best == batch.labels[i]) ++correct;
    }
    return correct;
}

}  // namespace fashion
