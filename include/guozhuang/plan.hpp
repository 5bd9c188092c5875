#pragma once

#include <cstddef>
#include <guozhuang/operations.hpp>
#include <memory>
#include <string>
#include <vector>

namespace guozhuang {

struct NamedTensor {
    std::string name;
    TensorView tensor;
};

struct PlanOptions {
    std::string name = "plan";  ///< the same on all ranks; different plans need different names
    ReduceOp op = ReduceOp::average;
    double prescale = 1;
    double postscale = 1;
    std::optional<StreamRef> stream = {};
    Session* session = nullptr;
};

/// Tensors that are allreduced again and again in fixed bundles: each bundle is negotiated as a whole, by one id after the first time, and
/// gives the same bits on every run. What DistributedOptimizer stands on. Every rank makes the same plan. One thread at a time.
class GUOZHUANG_API Plan {
public:
    /// The tensors must outlive the plan. Throws Error(invalid_argument) for an empty or duplicate name or an unusable tensor.
    explicit Plan(std::vector<std::vector<NamedTensor>> bundles, PlanOptions options = {});
    /// Waits up to a second for bundles that are still on their way; the tensors must outlive what takes longer (it is logged).
    ~Plan();
    Plan(Plan&&) noexcept;
    Plan& operator=(Plan&&) noexcept;

    /// The tensors of a bundle hold this rank's contribution: their reduction may start. Throws if it is already on its way.
    void ready(std::size_t bundle);
    /// Waits for every bundle that was made ready since the last wait(); throws the first error after all are settled.
    void wait();
    std::size_t size() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
