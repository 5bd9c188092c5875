#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/arena.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <memory>
#include <torch/utils.h>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// The ranks that train together.
inline ProcessSet ranks_of(const OptimizerOptions& options) {
    return options.process_set.state() ? options.process_set : ProcessSet(options.session);
}

/// Memory for gradients: an arena, which the other ranks of the host have mapped, or, where the
/// ranks of a process set train, memory that libtorch allocates. The tensors keep it alive.
class GradientMemory {
public:
    /// For the gradients of these parameters, and a float for each. Collective, but for a process
    /// set.
    GradientMemory(const std::vector<NamedParameter>& parameters, const OptimizerOptions& options) {
        if (options.process_set.state()) return;
        std::size_t bytes = aligned(parameters.size() * sizeof(float));
        for (const auto& each : parameters)
            if (!each.has_sparse_gradient) bytes += aligned(each.tensor.nbytes());
        const auto device =
            detail::memory_of(parameters.front().tensor, parameters.front().name).device;
        is_on_host_ = device.kind == DeviceKind::host;
        arena_ = std::make_shared<GradientArena>(bytes, device, options.session);
    }

    at::Tensor zeros(at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options) {
        options = options.requires_grad(false);
        if (!arena_) return at::empty_strided(sizes, strides, options).zero_();
        const auto count = count_of({sizes.data(), sizes.size()});
        return at::from_blob(
            arena_->allocate(count * options.dtype().itemsize()), sizes, strides,
            [arena = arena_](void*) {}, options);
    }

    /// Host memory for a number for each parameter.
    at::Tensor uses(std::int64_t count) {
        const at::TensorOptions options(at::kFloat);
        return is_on_host_ ? zeros({count}, {1}, options) : at::zeros({count}, options);
    }

private:
    /// Returns the bytes that an allocation takes in an arena: it begins at a cache line.
    static std::size_t aligned(std::size_t bytes) {
        return (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    }

    bool is_on_host_ = true;  ///< the arena, if there is one
    std::shared_ptr<GradientArena> arena_;
};

/// Makes `view` the gradient of the parameter, with the values that its gradient has had; zeros if
/// it had none. A sparse gradient becomes a dense one.
inline void attach(const at::Tensor& parameter, const at::Tensor& view) {
    const at::NoGradGuard no_graph;
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined())
        view.zero_();
    else if (gradient.is_same(view))
        return;
    else if (gradient.is_sparse())
        view.zero_().add_(gradient);
    else
        view.copy_(gradient);
    gradient = view;
}

/// A gradient as a reduction has left it.
class ReducedGradient {
public:
    ReducedGradient() = default;
    explicit ReducedGradient(at::Tensor gradient)
        : gradient_(std::move(gradient)), version_(gradient_._version()) {}

    /// To be called when backward has added to the parameter's gradient, which is this one now.
    void note_addition(const at::Tensor& gradient) {
        if (gradient.is_same(gradient_))
            ++version_;
        else
            *this = {};
    }
    /// Whether that is this gradient, with nothing done to it but additions: nobody has cleared it.
    bool is_left(const at::Tensor& gradient) const {
        return gradient_.defined() && gradient.is_same(gradient_) &&
               gradient._version() == version_;
    }

private:
    at::Tensor gradient_;
    std::int64_t version_ = 0;  ///< if additions alone have changed it, each of which counts one
};

}  // namespace guozhuang::torch
