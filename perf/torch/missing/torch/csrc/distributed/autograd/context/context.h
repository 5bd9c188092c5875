#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

// The part of this libtorch header that c10d/reducer.hpp needs. Debian's package lacks the header.
namespace torch::distributed::autograd {

struct DistAutogradContext {
    using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
