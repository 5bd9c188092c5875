#pragma once

#include <cstddef>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <span>
#include <string_view>

#include "task.hpp"

namespace guozhuang::experiment {

/// The results of a method, at the end.
struct Counters {
    std::size_t state_bytes = 0;  ///< of the optimizer, on this rank
    std::size_t stale_max = 0;    ///< the oldest contribution that was used, in steps
    std::size_t dropped = 0;      ///< contributions of this rank that were not used
};

/// A rank's training: the task, its share of each batch, and how slow the rank is.
struct Training {
    Task& task;
    Share share;
    double slowness = 1;  ///< how many times longer backward takes than it must

    double backward(std::size_t step, const std::function<void(std::size_t)>& done = {});
};

/// A way in which ranks train together.
class Method {
public:
    virtual ~Method() = default;
    /// A step of this rank; the numbers count from 0. Returns the loss of its share.
    virtual double step(std::size_t number) = 0;
    /// After the last step: leaves the values that are scored.
    virtual void finish() {}
    virtual Counters counters() const = 0;
};

struct MethodEntry {
    std::string_view name, about, source;
    std::function<std::unique_ptr<Method>(const Training&)> make;
    int passes = 1;  ///< steps for each update
};
/// All methods, in the order in which --list prints them.
std::span<const MethodEntry> methods();

}  // namespace guozhuang::experiment
