#pragma once

#include "device/reduction.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// How the bundle's elements of this type are combined.
inline device::Reduction reduction_of(const engine::Bundle& bundle, DType dtype) noexcept {
    return {.op = bundle.description->op,
            .dtype = dtype,
            .contributors = bundle.contributors,
            .postscale = bundle.description->postscale};
}

/// How the bundle's sums are divided and scaled.
inline device::Finish finish_of(const engine::Bundle& bundle) noexcept {
    const bool divides = bundle.description->op == ReduceOp::average && bundle.contributors > 1;
    return {.divisor = divides ? bundle.contributors : 1, .scale = bundle.description->postscale};
}

/// One way to move bundles of tensors on a device.
class Path : public engine::StreamBackend {
public:
    /// Whether it can move this bundle; the same on all ranks.
    virtual bool supports(const engine::Bundle& bundle) const noexcept = 0;
};

}  // namespace guozhuang::backends
