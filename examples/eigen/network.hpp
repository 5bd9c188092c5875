#pragma once

#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fashion_mnist/dataset.hpp"

namespace fashion {

/// A parameter, and its gradient, which Network::backward() writes.
struct Tensor {
    std::string name;
    Eigen::MatrixXf value, gradient;
};

/// A perceptron of one hidden layer. Samples are columns.
class Network {
public:
    explicit Network(std::uint64_t seed) {
        std::mt19937_64 random(seed);
        add("hidden.weight", hidden, image_pixels, random);
        add("hidden.bias", hidden, 1, random);
        add("scores.weight", classes, hidden, random);
        add("scores.bias", classes, 1, random);
    }

    /// The mean loss of a batch, of which it leaves the gradients. Calls `done` with the number of
    /// each tensor whose gradient is complete.
    double backward(const Batch& batch, const std::function<void(std::size_t)>& done = {}) {
        const auto images = images_of(batch);
        const Eigen::MatrixXf active = hidden_of(images);
        Eigen::MatrixXf deltas = probabilities_of(active);
        double loss = 0;
        for (Eigen::Index i = 0; i < deltas.cols(); ++i) {
            auto& right = deltas(batch.labels[static_cast<std::size_t>(i)], i);
            loss -= std::log(right);
            right -= 1;
        }
        deltas /= static_cast<float>(batch.size());
        finish(2, deltas, active, done);
        const auto is_active = (active.array() > 0).cast<float>();
        const Eigen::MatrixXf below = (tensors_[2].value.transpose() * deltas).array() * is_active;
        finish(0, below, images, done);
        return loss / static_cast<double>(batch.size());
    }

    std::size_t count_correct(const Batch& batch) const {
        const Eigen::MatrixXf scores = probabilities_of(hidden_of(images_of(batch)));
        std::size_t correct = 0;
        for (Eigen::Index i = 0; i < scores.cols(); ++i) {
            Eigen::Index best = 0;
            scores.col(i).maxCoeff(&best);
            correct += best == batch.labels[static_cast<std::size_t>(i)];
        }
        return correct;
    }

    std::vector<Tensor>& tensors() noexcept { return tensors_; }

private:
    static constexpr Eigen::Index hidden = 64;
    using Images = Eigen::Map<const Eigen::MatrixXf>;

    static Images images_of(const Batch& batch) {
        return {batch.images.data(), image_pixels, static_cast<Eigen::Index>(batch.size())};
    }

    void add(const char* name, Eigen::Index rows, Eigen::Index columns, std::mt19937_64& random) {
        std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(columns)));
        const auto draw = [&] { return columns == 1 ? 0 : normal(random); };
        tensors_.push_back({name, Eigen::MatrixXf::NullaryExpr(rows, columns, draw),
                            Eigen::MatrixXf::Zero(rows, columns)});
    }

    Eigen::MatrixXf linear(std::size_t weight, const Eigen::Ref<const Eigen::MatrixXf>& in) const {
        return (tensors_[weight].value * in).colwise() + tensors_[weight + 1].value.col(0);
    }
    Eigen::MatrixXf hidden_of(const Images& images) const { return linear(0, images).cwiseMax(0); }
    Eigen::MatrixXf probabilities_of(const Eigen::MatrixXf& active) const {
        Eigen::MatrixXf scores = linear(2, active);
        scores.rowwise() -= scores.colwise().maxCoeff().eval();
        scores = scores.array().exp();
        scores.array().rowwise() /= scores.colwise().sum().eval().array();
        return scores;
    }

    void finish(std::size_t weight, const Eigen::MatrixXf& deltas,
                const Eigen::Ref<const Eigen::MatrixXf>& in,
                const std::function<void(std::size_t)>& done) {
        tensors_[weight + 1].gradient = deltas.rowwise().sum();
        if (done) done(weight + 1);
        tensors_[weight].gradient = deltas * in.transpose();
        if (done) done(weight);
    }

    std::vector<Tensor> tensors_;
};

/// Gradient descent with momentum.
class Sgd {
public:
    Sgd(std::vector<Tensor>& tensors, double rate)
        : tensors_(tensors), rate_(static_cast<float>(rate)) {
        for (const auto& tensor : tensors) velocities_.push_back(0 * tensor.value);
    }
    void step() {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            velocities_[i] = 0.9F * velocities_[i] + tensors_[i].gradient;
            tensors_[i].value -= rate_ * velocities_[i];
        }
    }

private:
    std::vector<Tensor>& tensors_;
    std::vector<Eigen::MatrixXf> velocities_;
    float rate_;
};

}  // namespace fashion
