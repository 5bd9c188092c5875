#pragma once

#include <guozhuang/optimizer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "training/bundles.hpp"

namespace guozhuang {

/// Reduces the gradients of an optimizer in fewer bytes, and adds the error of the codec to the
/// gradients of the next step (error feedback).
class Compressor {
public:
    virtual ~Compressor() = default;

    /// The codec with its settings, and the shapes of the gradients, which the plan does not see.
    virtual void append_agreements(std::vector<Agreement>& agreements) const = 0;

    /// Collective, once every rank has its gradients ready. Afterwards they hold what all ranks
    /// have reduced, the same bits on all. Named by the optimizer. Throws what operations throw; a
    /// rank without memory ends the job.
    virtual void reduce(const std::string& optimizer) = 0;
};

/// Null without compression. Otherwise takes the gradients out of the bundles, and leaves a number
/// in each, which only tells the ranks that all of them have the bundle ready. Throws
/// Error(invalid_argument) for gradients and options that a codec does not take.
std::unique_ptr<Compressor> make_compressor(Bundles& bundles, const OptimizerOptions& options);

}  // namespace guozhuang
