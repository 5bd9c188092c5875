#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fashion_mnist/model.hpp"
#include "fashion_mnist_cuda/device.hpp"
#include "fashion_mnist_cuda/device_batch.hpp"
#include "fashion_mnist_cuda/kernels.hpp"

namespace fashion::cuda {

/// A trainable tensor of a model on the host, and its gradient, in the device's memory.
class Parameter {
public:
    explicit Parameter(const Tensor& initial);

    const float* value() const noexcept { return value_.data(); }
    float* gradient() const noexcept { return gradient_.data(); }
    std::size_t size() const noexcept { return value_.size(); }
    Tensor tensor() const { return {name_, value_.all(), gradient_.all()}; }

private:
    std::string name_;
    DeviceArray<float> value_, gradient_;
};

/// A fully connected layer, as fashion::Dense. Its functions enqueue their work.
class Dense {
public:
    Dense(const Tensor& weight, const Tensor& bias);

    /// [batch, inputs] -> [batch, outputs].
    void forward(Matrix in, float* out, const Stream& stream) const;
    /// From the gradient of the loss by the outputs: writes those by weight and bias.
    void backward_parameters(Matrix in, Matrix out_gradient, const Stream& stream) const;
    /// And that by the inputs.
    void backward_inputs(Matrix out_gradient, float* in_gradient, const Stream& stream) const;

    std::size_t outputs() const noexcept { return bias_.size(); }
    void append_parameters(std::vector<Tensor>& parameters) const;

private:
    Matrix weight() const {
        return Matrix::row_major(weight_.value(), weight_.size() / outputs(), outputs());
    }

    Parameter weight_, bias_;
};

/// The layers of a fashion::Model on the current device, and its functions, which enqueue their
/// work on a stream.
class Model {
public:
    /// The model begins with the values of `initial`. No batch has more than `batch_size` samples.
    /// The stream must outlive the model.
    Model(fashion::Model initial, std::size_t batch_size, const Stream& stream);

    /// The layers' tensors, in forward order: memory of the device.
    std::vector<Tensor> parameters() const;

    /// Forward and backward: overwrites all gradients with those of the batch's mean loss, and
    /// `loss`, on the device, with that. `on_gradient` is told of each gradient as soon as the
    /// kernel is enqueued that writes it.
    void backward(const Batch& batch, double* loss, const GradientCallback& on_gradient = {});

    /// How many samples of the batch are assigned their true class. Waits for the device.
    std::size_t count_correct(const Batch& batch);

private:
    void forward(const Batch& batch);
    /// The input of a layer for the current batch, one row per sample.
    Matrix inputs(std::size_t layer) const;
    /// The part of `outputs`, an array for the layer's outputs, that the current batch uses.
    std::span<float> of_batch(const DeviceArray<float>& outputs, std::size_t layer) const;
    std::span<const float> scores() const;  ///< the last layer's outputs

    const Stream& stream_;
    std::vector<Dense> layers_;
    DeviceBatch batch_;
    std::vector<DeviceArray<float>> activations_;  ///< of each layer
    std::vector<DeviceArray<float>> gradients_;    ///< of the loss by them
    DeviceArray<double> sample_losses_;
    DeviceArray<unsigned> correct_;
};

}  // namespace fashion::cuda
