#pragma once

#include <cstdint>
#include <functional>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/export.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/tensor.hpp>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace guozhuang {

/// How a GradScaler chooses its scale; the same on all ranks.
struct GradScalerOptions {
    double initial_scale = 65536;  ///< powers of two, here and below, lose no bits
    double growth = 2;     ///< multiplies the scale after growth_interval good steps; at least 1
    double backoff = 0.5;  ///< multiplies it after an overflow; above 0, below 1
    std::int64_t growth_interval = 2000;  ///< good steps in a row; at least 1
    /// Gradients are scaled down to this global 2-norm, counted without the loss scale. At least 0.
    double max_norm = std::numeric_limits<double>::infinity();
    ElementOptions elements = {};  ///< for gradients on a device: the stream of the optimizer
};

/// Dynamic loss scaling (Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2) for
/// gradients of f16, which holds nothing below 6e-8. It stands between a DistributedOptimizer and
/// the optimizer that steps:
///
///     gz::GradScaler scaler(master, parameters);
///     gz::DistributedOptimizer optimizer(scaler, parameters);
///     ...
///     model.backward(batch, scaler.scale());  // of the loss times the scale
///     scaler.step(optimizer);                 // instead of optimizer.step()
///
/// All ranks hold the same reduced gradients, so all skip the same batches and hold the same scale,
/// and nothing more is sent. One thread at a time. Must stay where it is while a
/// DistributedOptimizer refers to it.
class GUOZHUANG_API GradScaler {
public:
    /// For the parameters of the DistributedOptimizer. `optimizer` steps, and must outlive this. A
    /// MasterWeights divides its f32 copies by the scale. For another one the gradients themselves
    /// are divided; f16, which would lose again what the scale has saved, is then refused. Throws
    /// Error(invalid_argument) for that, options out of range, and gradients that are not floating.
    template <Optimizer O>
    GradScaler(O& optimizer, std::span<const Parameter> parameters,
               const GradScalerOptions& options = {})
        : GradScaler(parameters, options, takes_factor<O>, [wrapped = &optimizer](double factor) {
              if constexpr (takes_factor<O>)
                  wrapped->step_scaled(factor);
              else
                  wrapped->step();
          }) {}
    GradScaler(const GradScaler&) = delete;
    GradScaler& operator=(const GradScaler&) = delete;

    /// The factor of the loss. It stays the same in all passes of a batch, until its step().
    double scale() const noexcept { return scale_; }
    /// Ends a pass as DistributedOptimizer::step() does, and throws what that throws. Returns false
    /// if the pass only accumulates. Otherwise waits for the averages. If any is infinite or NaN,
    /// all ranks leave the batch out, and the scale is multiplied by `backoff`; if not, they are
    /// divided by the scale, clipped, and the optimizer steps. Returns true either way: the trainer
    /// then clears the gradients. One norm() tells overflows and serves for clipping. It adds up in
    /// f64, so finite gradients of 16 or 32 bits never count as an overflow; those of f64 do from a
    /// norm of about 1e154 on.
    ///
    /// A rank that skips alone, because somebody has changed its gradients after synchronize(),
    /// ends with Error(mismatch) on all ranks in their next batch. Throws Error(invalid_argument)
    /// if the optimizer does not wrap this scaler.
    template <class O>
    bool step(DistributedOptimizer<O>& optimizer) {
        static_assert(std::is_same_v<O, GradScaler>,
                      "give the DistributedOptimizer the GradScaler in place of the optimizer that "
                      "the GradScaler wraps");
        require_own(optimizer.wrapped());
        has_overflowed_ = false;
        try {
            return optimizer.step();
        } catch (const Error&) {
            if (!has_overflowed_) throw;
        }
        optimizer.discard("the reduced gradients are not finite");  // each rank by itself: all do
        skip();
        return true;
    }
    std::int64_t skipped() const noexcept { return skipped_; }  ///< batches left out so far

    /// Called by the DistributedOptimizer. Throws Error(invalid_argument) for gradients that are
    /// not finite, if the trainer has called the optimizer's own step().
    void step();

    /// The scale and its counts; the wrapped optimizer shows its own state. For
    /// broadcast_optimizer_state() and checkpoints.
    template <class V>
    void visit_state(V&& visit) {
        visit("loss_scale", scale_);
        visit("good_steps", good_steps_);
        visit("skipped", skipped_);
    }

private:
    template <class O>
    static constexpr bool takes_factor = requires(O& optimizer) { optimizer.step_scaled(1.0); };
    GradScaler(std::span<const Parameter> parameters, const GradScalerOptions& options,
               bool has_master, std::function<void(double)> step);
    void require_own(const GradScaler& wrapped) const;
    double factor_of(double norm) const;
    void step_in_place(double norm);
    void skip();
    void set_scale(double scale);

    std::vector<TensorView> gradients_;  ///< without those of the same memory
    GradScalerOptions options_;
    bool has_master_;  ///< the wrapped optimizer is a MasterWeights
    std::function<void(double)> step_;
    double scale_;
    std::int64_t good_steps_ = 0;  ///< since the scale has changed
    std::int64_t skipped_ = 0;
    bool has_overflowed_ = false;  ///< the last step() has found gradients that are not finite
    /// The norm of gradients that are divided already: the wrapped optimizer has thrown, and
    /// another call of step() steps with them.
    std::optional<double> divided_;
};

}  // namespace guozhuang
