#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

/// The model's kernels. All memory is on the device. Each function enqueues its work on the stream
/// and returns; it throws std::runtime_error if CUDA refuses.
namespace fashion::cuda {

/// A matrix to read: element (row, column) is values[row * row_step + column * column_step].
struct Matrix {
    const float* values;
    unsigned rows, columns;
    unsigned row_step, column_step;

    static Matrix row_major(const float* values, std::size_t rows, std::size_t columns) {
        const auto width = static_cast<unsigned>(columns);
        return {values, static_cast<unsigned>(rows), width, width, 1};
    }
    /// Needs no copy.
    Matrix transposed() const { return {values, columns, rows, column_step, row_step}; }
};

/// out = a * b, row-major. To every row of it `bias` is added, unless that is null.
void multiply(Matrix a, Matrix b, const float* bias, float* out, cudaStream_t stream);

/// The sum of each column.
void sum_columns(Matrix matrix, float* sums, cudaStream_t stream);

/// The hyperbolic tangent, in place.
void activate(std::span<float> values, cudaStream_t stream);
/// The gradient by what activate() was given, from that by its outputs, in place.
void activate_backward(std::span<const float> outputs, std::span<float> gradient,
                       cudaStream_t stream);

/// From scores [samples, classes]: the gradient of the mean loss by them, and each sample's loss.
void softmax_cross_entropy(std::span<const float> scores, const std::uint8_t* labels,
                           float* gradient, double* sample_losses, cudaStream_t stream);
void mean(std::span<const double> values, double* result, cudaStream_t stream);

/// Adds how many samples have their highest score in their true class.
void count_correct(std::span<const float> scores, const std::uint8_t* labels, unsigned* correct,
                   cudaStream_t stream);

/// Arguments of a gradient descent step on a parameter of `count` elements.
struct Descent {
    float* value;
    const float* gradient;
    float* velocity;
    float rate;
    float momentum;
};
void descend(const Descent& descent, std::size_t count, cudaStream_t stream);

}  // namespace fashion::cuda
