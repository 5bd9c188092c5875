#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

/// A matrix as the product of two thin ones, by one step of the power method (T. Vogels et al.,
/// "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019). M is
/// [rows, columns], left [rows, rank], right [columns, rank], all row-major:
///   left = M right, averaged over the ranks, its columns made orthonormal;
///   right = M^T left, averaged; M is taken to be left right^T.
/// `right` is kept from step to step, as the next start.
namespace guozhuang::codecs::low_rank {

struct Extents {
    std::size_t rows = 0, columns = 0, rank = 0;
    std::size_t left() const noexcept { return rows * rank; }
    std::size_t right() const noexcept { return columns * rank; }
};

/// A number between -1 and 1, the same on every rank.
inline float draw(std::uint32_t& state) {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
}

inline void start(std::span<float> right) {
    std::uint32_t state = 1;
    for (float& value : right) value = draw(state);
}

/// Draws columns anew that are zero or not finite, and would stay so: of `right`, in the last step.
inline void restart(const Extents& of, std::span<float> right) {
    for (std::size_t k = 0; k < of.rank; ++k) {
        bool useful = false, finite = true;
        for (std::size_t j = 0; j < of.columns; ++j) {
            useful |= right[j * of.rank + k] != 0;
            finite &= std::isfinite(right[j * of.rank + k]);
        }
        if (useful && finite) continue;
        std::uint32_t state = static_cast<std::uint32_t>(k);
        for (std::size_t j = 0; j < of.columns; ++j) right[j * of.rank + k] = draw(state);
    }
}

inline void multiply(const Extents& of, std::span<const float> matrix, std::span<const float> right,
                     std::span<float> left) {
    std::ranges::fill(left, 0.0F);
    for (std::size_t i = 0; i < of.rows; ++i)
        for (std::size_t j = 0; j < of.columns; ++j)
            for (std::size_t k = 0; k < of.rank; ++k)
                left[i * of.rank + k] += matrix[i * of.columns + j] * right[j * of.rank + k];
}

inline void multiply_transposed(const Extents& of, std::span<const float> matrix,
                                std::span<const float> left, std::span<float> right) {
    std::ranges::fill(right, 0.0F);
    for (std::size_t i = 0; i < of.rows; ++i)
        for (std::size_t j = 0; j < of.columns; ++j)
            for (std::size_t k = 0; k < of.rank; ++k)
                right[j * of.rank + k] += matrix[i * of.columns + j] * left[i * of.rank + k];
}

/// Gram-Schmidt over the columns. A column that depends on those before it becomes zero.
inline void orthonormalise(const Extents& of, std::span<float> left) {
    const auto column = [&](std::size_t i, std::size_t k) -> float& {
        return left[i * of.rank + k];
    };
    for (std::size_t k = 0; k < of.rank; ++k) {
        double before = 0;
        for (std::size_t i = 0; i < of.rows; ++i)
            before += static_cast<double>(column(i, k)) * static_cast<double>(column(i, k));
        for (std::size_t earlier = 0; earlier < k; ++earlier) {
            double product = 0;
            for (std::size_t i = 0; i < of.rows; ++i)
                product +=
                    static_cast<double>(column(i, earlier)) * static_cast<double>(column(i, k));
            for (std::size_t i = 0; i < of.rows; ++i)
                column(i, k) -= static_cast<float>(product) * column(i, earlier);
        }
        double norm = 0;
        for (std::size_t i = 0; i < of.rows; ++i)
            norm += static_cast<double>(column(i, k)) * static_cast<double>(column(i, k));
        const bool depends = norm <= 1e-12 * before;
        const double factor = depends ? 0 : 1 / std::sqrt(norm);
        for (std::size_t i = 0; i < of.rows; ++i)
            column(i, k) = static_cast<float>(static_cast<double>(column(i, k)) * factor);
    }
}

/// out = left right^T, times `factor`.
inline void product(const Extents& of, std::span<const float> left, std::span<const float> right,
                    float factor, std::span<float> out) {
    for (std::size_t i = 0; i < of.rows; ++i)
        for (std::size_t j = 0; j < of.columns; ++j) {
            float sum = 0;
            for (std::size_t k = 0; k < of.rank; ++k)
                sum += left[i * of.rank + k] * right[j * of.rank + k];
            out[i * of.columns + j] = sum * factor;
        }
}

}  // namespace guozhuang::codecs::low_rank
