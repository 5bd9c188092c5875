#pragma once

#include <cstddef>
#include <guozhuang/optimizer.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace guozhuang {

/// The bundles in which an optimizer's gradients travel, and an index of its parameters. Throws
/// Error(invalid_argument) as GradientReducer's constructor does.
struct Bundles {
    /// The parameters must outlive this.
    Bundles(const std::vector<Parameter>& parameters, const OptimizerOptions& options);

    std::unordered_map<std::string_view, std::size_t> index;  ///< of a parameter, by name
    std::vector<std::size_t> bundle_of;                       ///< of each parameter with a gradient
    std::vector<std::size_t> size;  ///< how many parameters each bundle waits for
    /// For each parameter, the first parameter whose gradient has the same memory: its bundle
    /// reduces both.
    std::vector<std::size_t> tied_to;
    std::size_t uses_bundle = 0;  ///< the bundle in which ranks say which gradients they use
    std::vector<std::vector<NamedTensor>> tensors;

private:
    void lay_out(const std::vector<Parameter>& parameters, const OptimizerOptions& options);
    std::size_t add(NamedTensor tensor, std::size_t limit);
    void begin_bundle();
    void tie(const std::vector<Parameter>& parameters);

    std::size_t bytes_ = 0;  ///< of the last bundle
};

}  // namespace guozhuang
