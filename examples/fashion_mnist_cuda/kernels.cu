#include <cmath>
#include <type_traits>

#include "fashion_mnist/dataset.hpp"
#include "fashion_mnist_cuda/device.hpp"
#include "fashion_mnist_cuda/kernels.hpp"

namespace fashion::cuda {
namespace {

/// Each thread computes a square of so many rows and columns of a product, so that it multiplies
/// tile * tile times for 2 * tile values that it loads.
constexpr unsigned tile = 4;

__device__ unsigned thread_x() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ unsigned thread_y() {
    return blockIdx.y * blockDim.y + threadIdx.y;
}

__device__ float at(const Matrix& matrix, unsigned row, unsigned column) {
    return matrix.values[row * matrix.row_step + column * matrix.column_step];
}

/// Sums are taken in the order of a's columns, as on the CPU. Where a thread's square reaches
/// beyond the product, the thread computes the last row or column again instead.
__global__ void multiply_kernel(Matrix a, Matrix b, const float* bias, float* out) {
    const unsigned first_row = tile * thread_y(), first_column = tile * thread_x();
    if (first_row >= a.rows || first_column >= b.columns) return;
    unsigned rows[tile], columns[tile];
    float sums[tile][tile];
    for (unsigned i = 0; i < tile; ++i) {
        rows[i] = first_row + i < a.rows ? first_row + i : a.rows - 1;
        columns[i] = first_column + i < b.columns ? first_column + i : b.columns - 1;
    }
    for (unsigned i = 0; i < tile; ++i)
        for (unsigned j = 0; j < tile; ++j) sums[i][j] = bias ? bias[columns[j]] : 0;
    for (unsigned k = 0; k < a.columns; ++k) {
        float left[tile], right[tile];
        for (unsigned i = 0; i < tile; ++i) {
            left[i] = at(a, rows[i], k);
            right[i] = at(b, k, columns[i]);
        }
        for (unsigned i = 0; i < tile; ++i)
            for (unsigned j = 0; j < tile; ++j) sums[i][j] += left[i] * right[j];
    }
    for (unsigned i = 0; i < tile; ++i)
        for (unsigned j = 0; j < tile; ++j) out[rows[i] * b.columns + columns[j]] = sums[i][j];
}

__global__ void sum_columns_kernel(Matrix matrix, float* sums) {
    const unsigned column = thread_x();
    if (column >= matrix.columns) return;
    float sum = 0;
    for (unsigned row = 0; row < matrix.rows; ++row) sum += at(matrix, row, column);
    sums[column] = sum;
}

__global__ void activate_kernel(float* values, unsigned count) {
    const unsigned i = thread_x();
    if (i < count) values[i] = std::tanh(values[i]);
}

__global__ void activate_backward_kernel(const float* outputs, float* gradient, unsigned count) {
    const unsigned i = thread_x();
    if (i < count) gradient[i] *= 1 - outputs[i] * outputs[i];
}

__device__ unsigned position_of_largest(const float* scores) {
    unsigned largest = 0;
    for (unsigned i = 1; i < classes; ++i)
        if (scores[i] > scores[largest]) largest = i;
    return largest;
}

__global__ void softmax_cross_entropy_kernel(const float* scores, const std::uint8_t* labels,
                                             float* gradient, double* sample_losses,
                                             unsigned samples) {
    const unsigned sample = thread_x();
    if (sample >= samples) return;
    const float* own_scores = scores + sample * classes;
    float* row = gradient + sample * classes;
    const unsigned label = labels[sample];
    const float largest = own_scores[position_of_largest(own_scores)];
    float sum = 0;
    for (unsigned i = 0; i < classes; ++i) sum += row[i] = std::exp(own_scores[i] - largest);
    sample_losses[sample] = -std::log(static_cast<double>(row[label] / sum) + 1e-30);
    const float scale = 1.0F / static_cast<float>(samples);
    for (unsigned i = 0; i < classes; ++i) row[i] *= scale / sum;
    row[label] -= scale;
}

/// All threads of its one block compute and write the same mean: the values are few, and added in
/// their order.
__global__ void mean_kernel(const double* values, unsigned count, double* result) {
    double sum = 0;
    for (unsigned i = 0; i < count; ++i) sum += values[i];
    *result = sum / count;
}

__global__ void count_correct_kernel(const float* scores, const std::uint8_t* labels,
                                     unsigned samples, unsigned* correct) {
    const unsigned sample = thread_x();
    if (sample < samples && position_of_largest(scores + sample * classes) == labels[sample])
        atomicAdd(correct, 1u);
}

__global__ void descend_kernel(Descent descent, unsigned count) {
    const unsigned i = thread_x();
    if (i >= count) return;
    const float velocity = descent.momentum * descent.velocity[i] + descent.gradient[i];
    descent.velocity[i] = velocity;
    descent.value[i] -= descent.rate * velocity;
}

/// Launches a kernel of at least so many threads in both directions, with those arguments.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 threads, cudaStream_t stream,
            std::type_identity_t<Parameters>... arguments) {
    const dim3 block = threads.y > 1 ? dim3(16, 16) : dim3(128);
    cudaLaunchConfig_t config{};
    config.blockDim = block;
    config.gridDim = dim3((threads.x + block.x - 1) / block.x, (threads.y + block.y - 1) / block.y);
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, arguments...));
}

template <class T>
unsigned count_of(std::span<T> elements) {
    return static_cast<unsigned>(elements.size());
}

unsigned samples_of(std::span<const float> scores) {
    return static_cast<unsigned>(scores.size() / classes);
}

}  // namespace

void multiply(Matrix a, Matrix b, const float* bias, float* out, cudaStream_t stream) {
    const dim3 threads((b.columns + tile - 1) / tile, (a.rows + tile - 1) / tile);
    launch(multiply_kernel, threads, stream, a, b, bias, out);
}

void sum_columns(Matrix matrix, float* sums, cudaStream_t stream) {
    launch(sum_columns_kernel, matrix.columns, stream, matrix, sums);
}

void activate(std::span<float> values, cudaStream_t stream) {
    launch(activate_kernel, count_of(values), stream, values.data(), count_of(values));
}

void activate_backward(std::span<const float> outputs, std::span<float> gradient,
                       cudaStream_t stream) {
    launch(activate_backward_kernel, count_of(outputs), stream, outputs.data(), gradient.data(),
           count_of(outputs));
}

void softmax_cross_entropy(std::span<const float> scores, const std::uint8_t* labels,
                           float* gradient, double* sample_losses, cudaStream_t stream) {
    launch(softmax_cross_entropy_kernel, samples_of(scores), stream, scores.data(), labels,
           gradient, sample_losses, samples_of(scores));
}

void mean(std::span<const double> values, double* result, cudaStream_t stream) {
    launch(mean_kernel, 1, stream, values.data(), count_of(values), result);
}

void count_correct(std::span<const float> scores, const std::uint8_t* labels, unsigned* correct,
                   cudaStream_t stream) {
    launch(count_correct_kernel, samples_of(scores), stream, scores.data(), labels,
           samples_of(scores), correct);
}

void descend(const Descent& descent, std::size_t count, cudaStream_t stream) {
    launch(descend_kernel, static_cast<unsigned>(count), stream, descent,
           static_cast<unsigned>(count));
}

}  // namespace fashion::cuda
