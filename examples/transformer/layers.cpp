#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <Eigen/Core>
#include <stdexcept>
#include <utility>

namespace transformer {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strided = Eigen::OuterStride<>;
using In = Eigen::Map<const Matrix, 0, Strided>;
using Out = Eigen::Map<Matrix, 0, Strided>;

/// `columns` of each row of a matrix whose rows are `stride` apart.
In part(const float* first, std::size_t rows, std::size_t columns, std::size_t stride) {
    return {first, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns),
            Strided(static_cast<Eigen::Index>(stride))};
}
Out part(float* first, std::size_t rows, std::size_t columns, std::size_t stride) {
    return {first, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns),
            Strided(static_cast<Eigen::Index>(stride))};
}
In whole(std::span<const float> values, std::size_t columns) {
    return part(values.data(), values.size() / columns, columns, columns);
}
Out whole(std::span<float> values, std::size_t columns) {
    return part(values.data(), values.size() / columns, columns, columns);
}

void add(std::span<float> to, std::span<const float> values) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

/// The usual approximation of the Gaussian error linear unit by tanh (D. Hendrycks, K. Gimpel,
/// 2016).
constexpr float gelu_scale = 0.7978845608F, gelu_cubic = 0.044715F;

float gelu(float x) {
    return 0.5F * x * (1 + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}

float gelu_slope(float x) {
    const float tanh = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
    const float inner = gelu_scale * (1 + 3 * gelu_cubic * x * x);
    return 0.5F * (1 + tanh) + 0.5F * x * (1 - tanh * tanh) * inner;
}

}  // namespace

Tensor Store::take(std::string name, std::size_t count, float mean, float deviation) {
    if (count > values_.size() - taken_) throw std::logic_error("no room for " + name);
    const Tensor tensor{std::move(name), std::span(values_).subspan(taken_, count),
                        std::span(gradients_).subspan(taken_, count)};
    taken_ += count;
    // The sum of twelve uniform numbers is nearly normal, and the same with every library.
    for (float& value : tensor.value) {
        double sum = -6;
        for (int i = 0; deviation != 0 && i < 12; ++i)
            sum += static_cast<double>(random_()) * 0x1p-32;
        value = deviation == 0 ? mean : mean + deviation * static_cast<float>(sum);
    }
    tensors_.push_back(tensor);
    return tensor;
}

Linear::Linear(Store& store, const std::string& name, std::size_t inputs, std::size_t outputs)
    : inputs_(inputs),
      outputs_(outputs),
      weight_(store.take(name + ".weight", inputs * outputs, 0,
                         std::sqrt(1 / static_cast<float>(inputs)))),
      bias_(store.take(name + ".bias", outputs, 0, 0)) {}

void Linear::forward(std::span<const float> in, std::span<float> out) const {
    for (std::size_t i = 0; i < out.size(); i += outputs_)
        std::ranges::copy(bias_.value, out.begin() + static_cast<std::ptrdiff_t>(i));
    whole(out, outputs_).noalias() += whole(in, inputs_) * whole(weight_.value, outputs_);
}

void Linear::backward(std::span<const float> in, std::span<const float> out_gradient,
                      std::span<float> in_gradient) {
    const auto by_out = whole(out_gradient, outputs_);
    whole(weight_.gradient, outputs_).noalias() = whole(in, inputs_).transpose() * by_out;
    std::ranges::fill(bias_.gradient, 0.0F);
    for (std::size_t i = 0; i < out_gradient.size(); i += outputs_)
        add(bias_.gradient, out_gradient.subspan(i, outputs_));
    if (!in_gradient.empty())
        whole(in_gradient, inputs_).noalias() = by_out * whole(weight_.value, outputs_).transpose();
}

LayerNorm::LayerNorm(Store& store, const std::string& name, std::size_t width)
    : width_(width),
      gain_(store.take(name + ".gain", width, 1, 0)),
      bias_(store.take(name + ".bias", width, 0, 0)) {}

void LayerNorm::forward(std::span<const float> in, std::span<float> out) {
    normal_.resize(in.size());
    scales_.resize(in.size() / width_);
    const auto width = static_cast<float>(width_);
    for (std::size_t row = 0; row < scales_.size(); ++row) {
        const auto values = in.subspan(row * width_, width_);
        float mean = 0, variance = 0;
        for (const float value : values) mean += value;
        mean /= width;
        for (const float value : values) variance += (value - mean) * (value - mean);
        const float scale = scales_[row] = 1 / std::sqrt(variance / width + 1e-5F);
        for (std::size_t i = 0; i < width_; ++i) {
            const float normal = normal_[row * width_ + i] = (values[i] - mean) * scale;
            out[row * width_ + i] = normal * gain_.value[i] + bias_.value[i];
        }
    }
}

void LayerNorm::backward(std::span<const float> out_gradient, std::span<float> in_gradient) {
    std::ranges::fill(gain_.gradient, 0.0F);
    std::ranges::fill(bias_.gradient, 0.0F);
    const auto width = static_cast<float>(width_);
    for (std::size_t row = 0; row < scales_.size(); ++row) {
        const auto* by_out = &out_gradient[row * width_];
        const auto* normal = &normal_[row * width_];
        float sum = 0, product = 0;
        for (std::size_t i = 0; i < width_; ++i) {
            gain_.gradient[i] += by_out[i] * normal[i];
            bias_.gradient[i] += by_out[i];
            const float by_normal = by_out[i] * gain_.value[i];
            sum += by_normal;
            product += by_normal * normal[i];
        }
        for (std::size_t i = 0; i < width_; ++i)
            in_gradient[row * width_ + i] +=
                scales_[row] *
                (by_out[i] * gain_.value[i] - sum / width - normal[i] * product / width);
    }
}

Block::Block(Store& store, const std::string& name, std::size_t width, std::size_t heads,
             bool causal)
    : width_(width),
      heads_(heads),
      causal_(causal),
      norm1_(store, name + ".norm1", width),
      to_heads_(store, name + ".to_heads", width, 3 * width),
      from_heads_(store, name + ".from_heads", width, width),
      norm2_(store, name + ".norm2", width),
      up_(store, name + ".up", width, 4 * width),
      down_(store, name + ".down", 4 * width, width) {}

/// For each sequence and head: weights = softmax(queries * keys^T / sqrt(size)), and attended =
/// weights * values.
void Block::attention(const Sequences& sequences) {
    const auto length = sequences.length, size = width_ / heads_;
    const float scale = 1 / std::sqrt(static_cast<float>(size));
    for (std::size_t pair = 0; pair < sequences.batch * heads_; ++pair) {
        const auto sequence = pair / heads_, head = pair % heads_;
        const float* first = &qkv_[sequence * length * 3 * width_ + head * size];
        auto weights = part(&weights_[pair * length * length], length, length, length);
        weights.noalias() = part(first, length, size, 3 * width_) *
                            part(first + width_, length, size, 3 * width_).transpose();
        for (std::size_t query = 0; query < length; ++query) {
            const auto seen = causal_ ? query + 1 : sequences.length_of(sequence);
            const std::span row(&weights_[(pair * length + query) * length], length);
            const float largest =
                *std::max_element(row.begin(), row.begin() + std::ptrdiff_t(seen));
            float sum = 0;
            for (std::size_t key = 0; key < seen; ++key)
                sum += row[key] = std::exp((row[key] - largest) * scale);
            for (std::size_t key = 0; key < length; ++key)
                row[key] = key < seen ? row[key] / sum : 0;
        }
        part(&attended_[sequence * length * width_ + head * size], length, size, width_).noalias() =
            weights * part(first + 2 * width_, length, size, 3 * width_);
    }
}

/// From the gradient by `attended`, in narrow_gradient_, to those by queries, keys and values.
void Block::attention_backward(const Sequences& sequences) {
    const auto length = sequences.length, size = width_ / heads_;
    const float scale = 1 / std::sqrt(static_cast<float>(size));
    Matrix by_weights;
    for (std::size_t pair = 0; pair < sequences.batch * heads_; ++pair) {
        const auto sequence = pair / heads_, head = pair % heads_;
        const auto at = sequence * length * 3 * width_ + head * size;
        const float* first = &qkv_[at];
        float* gradient = &qkv_gradient_[at];
        const auto weights =
            part(std::as_const(weights_).data() + pair * length * length, length, length, length);
        const auto by_attended =
            part(std::as_const(narrow_gradient_).data() + sequence * length * width_ + head * size,
                 length, size, width_);
        by_weights.noalias() =
            by_attended * part(first + 2 * width_, length, size, 3 * width_).transpose();
        part(gradient + 2 * width_, length, size, 3 * width_).noalias() =
            weights.transpose() * by_attended;
        for (Eigen::Index query = 0; query < by_weights.rows(); ++query) {
            const float mean = by_weights.row(query).dot(weights.row(query));
            by_weights.row(query).array() =
                scale * weights.row(query).array() * (by_weights.row(query).array() - mean);
        }
        part(gradient, length, size, 3 * width_).noalias() =
            by_weights * part(first + width_, length, size, 3 * width_);
        part(gradient + width_, length, size, 3 * width_).noalias() =
            by_weights.transpose() * part(first, length, size, 3 * width_);
    }
}

void Block::forward(const Sequences& sequences, std::span<float> x) {
    for (auto* buffer : {&normal1_, &normal2_, &attended_, &narrow_gradient_})
        buffer->resize(x.size());
    qkv_.resize(3 * x.size());
    weights_.resize(sequences.rows() * sequences.length * heads_);
    inner_.resize(4 * x.size());
    active_.resize(4 * x.size());
    norm1_.forward(x, normal1_);
    to_heads_.forward(normal1_, qkv_);
    attention(sequences);
    from_heads_.forward(attended_, narrow_gradient_);
    add(x, narrow_gradient_);
    norm2_.forward(x, normal2_);
    up_.forward(normal2_, inner_);
    std::ranges::transform(inner_, active_.begin(), gelu);
    down_.forward(active_, narrow_gradient_);
    add(x, narrow_gradient_);
}

void Block::backward(const Sequences& sequences, std::span<float> gradient) {
    wide_gradient_.resize(4 * gradient.size());
    qkv_gradient_.resize(3 * gradient.size());
    down_.backward(active_, gradient, wide_gradient_);
    for (std::size_t i = 0; i < inner_.size(); ++i) wide_gradient_[i] *= gelu_slope(inner_[i]);
    up_.backward(normal2_, wide_gradient_, narrow_gradient_);
    norm2_.backward(narrow_gradient_, gradient);
    from_heads_.backward(attended_, gradient, narrow_gradient_);
    attention_backward(sequences);
    to_heads_.backward(normal1_, qkv_gradient_, narrow_gradient_);
    norm1_.backward(narrow_gradient_, gradient);
}

double softmax_cross_entropy(std::span<float> scores, std::span<const int> targets) {
    const auto classes = scores.size() / targets.size();
    const auto counted = targets.size() - static_cast<std::size_t>(std::ranges::count_if(
                                              targets, [](int target) { return target < 0; }));
    const float scale = 1 / static_cast<float>(std::max<std::size_t>(counted, 1));
    double loss = 0;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const auto row = scores.subspan(i * classes, classes);
        if (targets[i] < 0) {
            std::ranges::fill(row, 0.0F);
            continue;
        }
        const float largest = *std::ranges::max_element(row);
        float sum = 0;
        for (float& score : row) sum += score = std::exp(score - largest);
        auto& right = row[static_cast<std::size_t>(targets[i])];
        loss -= std::log(static_cast<double>(right / sum) + 1e-30);
        for (float& score : row) score *= scale / sum;
        right -= scale;
    }
    return loss * static_cast<double>(scale);
}

}  // namespace transformer
