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

/// Reads a set from a path, or one that comes with gz-perf by its name ("resnet50"). Throws
/// std::runtime_error if there is no such file, or if it is not a set.
std::vector<GradientShape> read_gradient_set(const std::string& path_or_name);

/// A set's gradients as f32, one after another in one buffer; each starts at a cache line.
class Gradients {
public:
    /// On the device, if there is one.
    explicit Gradients(const std::vector<GradientShape>& shapes,
                       MemoryKind memory = MemoryKind::ordinary,
                       const TensorDevice* device = nullptr);

    /// In forward order. Values are the gradients' memory, since nothing here reads values.
    const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
    /// The whole buffer, with the few bytes between gradients.
    std::span<std::byte> flat() const noexcept { return memory_.all(); }
    const TensorDevice* device() const noexcept { return device_; }

private:
    const TensorDevice* device_;
    Memory memory_;
    std::vector<Parameter> parameters_;
};

}  // namespace guozhuang::perf
