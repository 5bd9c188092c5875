#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

// What c10d/reducer.hpp needs of this header of libtorch's, which Debian's package leaves out.
namespace torch::distributed::autograd {

struct DistAutogradContext {
    using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
