#pragma once

#include <filesystem>
#include <guozhuang/tensor.hpp>
#include <span>
#include <string>
#include <vector>

#include "memory.hpp"

namespace guozhuang::perf {

/// The gradients of a model: a JSON object {"name": [extents], ...} in forward order.
struct GradientShape {
    std::string name;
    Shape shape;
};

/// A path, or the bare name of a set that comes with gz-perf ("resnet50"). Throws
/// std::runtime_error if there is no such file or it holds no set.
std::vector<GradientShape> read_gradient_set(const std::string& path_or_name);

/// A set's gradients in memory, f32, side by side as a trainer with flat buffers has them; each
/// starts on a cache line.
class Gradients {
public:
    explicit Gradients(const std::vector<GradientShape>& shapes,
                       MemoryKind memory = MemoryKind::ordinary);

    /// In forward order. Value and gradient are the same memory: nothing here looks at values.
    const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
    /// All of them as one buffer, the few bytes between them included.
    std::span<std::byte> flat() const noexcept { return memory_.all(); }

private:
    Memory memory_;
    std::vector<Parameter> parameters_;
};

}  // namespace guozhuang::perf
