#include "fashion_mnist_cuda/model.hpp"

#include <utility>

namespace fashion::cuda {

Parameter::Parameter(const Tensor& initial)
    : name_(initial.name), value_(initial.value.size()), gradient_(initial.value.size()) {
    copy<float>(value_.all(), initial.value);
}

Dense::Dense(const Tensor& weight, const Tensor& bias) : weight_(weight), bias_(bias) {}

void Dense::forward(Matrix in, float* out, const Stream& stream) const {
    multiply(in, weight(), bias_.value(), out, stream.native());
}

void Dense::backward_parameters(Matrix in, Matrix out_gradient, const Stream& stream) const {
    multiply(in.transposed(), out_gradient, nullptr, weight_.gradient(), stream.native());
    sum_columns(out_gradient, bias_.gradient(), stream.native());
}

void Dense::backward_inputs(Matrix out_gradient, float* in_gradient, const Stream& stream) const {
    multiply(out_gradient, weight().transposed(), nullptr, in_gradient, stream.native());
}

void Dense::append_parameters(std::vector<Tensor>& parameters) const {
    parameters.push_back(weight_.tensor());
    parameters.push_back(bias_.tensor());
}

Model::Model(fashion::Model initial, std::size_t batch_size, const Stream& stream)
    : stream_(stream), batch_(batch_size), sample_losses_(batch_size), correct_(1) {
    const auto tensors = initial.parameters();
    for (std::size_t i = 0; i < tensors.size(); i += 2) {
        const auto& layer = layers_.emplace_back(tensors[i], tensors[i + 1]);
        activations_.emplace_back(batch_size * layer.outputs());
        gradients_.emplace_back(batch_size * layer.outputs());
    }
}

std::vector<Tensor> Model::parameters() const {
    std::vector<Tensor> parameters;
    for (const auto& layer : layers_) layer.append_parameters(parameters);
    return parameters;
}

Matrix Model::inputs(std::size_t layer) const {
    return layer == 0 ? Matrix::row_major(batch_.images(), batch_.size(), image_pixels)
                      : Matrix::row_major(activations_[layer - 1].data(), batch_.size(),
                                          layers_[layer - 1].outputs());
}

std::span<float> Model::of_batch(const DeviceArray<float>& outputs, std::size_t layer) const {
    return outputs.all().first(batch_.size() * layers_[layer].outputs());
}

std::span<const float> Model::scores() const {
    return of_batch(activations_.back(), layers_.size() - 1);
}

void Model::forward(const Batch& batch) {
    batch_.upload(batch, stream_);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layers_[i].forward(inputs(i), activations_[i].data(), stream_);
        if (i + 1 < layers_.size()) activate(of_batch(activations_[i], i), stream_.native());
    }
}

void Model::backward(const Batch& batch, double* loss, const GradientCallback& on_gradient) {
    forward(batch);
    softmax_cross_entropy(scores(), batch_.labels(), gradients_.back().data(),
                          sample_losses_.data(), stream_.native());
    mean(sample_losses_.all().first(batch.size()), loss, stream_.native());
    for (std::size_t i = layers_.size(); i-- > 0;) {
        const auto gradient =
            Matrix::row_major(gradients_[i].data(), batch.size(), layers_[i].outputs());
        layers_[i].backward_parameters(inputs(i), gradient, stream_);
        if (on_gradient) {
            on_gradient(2 * i + 1);
            on_gradient(2 * i);
        }
        if (i == 0) break;
        layers_[i].backward_inputs(gradient, gradients_[i - 1].data(), stream_);
        activate_backward(of_batch(activations_[i - 1], i - 1), of_batch(gradients_[i - 1], i - 1),
                          stream_.native());
    }
}

std::size_t Model::count_correct(const Batch& batch) {
    forward(batch);
    check(cudaMemsetAsync(correct_.data(), 0, sizeof(unsigned), stream_.native()));
    cuda::count_correct(scores(), batch_.labels(), correct_.data(), stream_.native());
    unsigned correct = 0;
    copy<unsigned>({&correct, 1}, correct_.all());
    return correct;
}

}  // namespace fashion::cuda
