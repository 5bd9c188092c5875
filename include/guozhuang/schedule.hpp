#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/export.hpp>

namespace guozhuang {

/// How the learning rate falls after warm-up.
enum class Decay : std::uint8_t {
    none,
    linear,  ///< by the same amount in each step
    cosine   ///< along half a cosine (Loshchilov and Hutter, SGDR, ICLR 2017, without restarts)
};

/// The shape of a Schedule. Steps are those of the job, all ranks together: see steps_per_epoch().
struct ScheduleOptions {
    double rate;                   ///< after warm-up; finite, at least 0
    std::size_t steps;             ///< of the whole training, with warm-up
    std::size_t warmup_steps = 0;  ///< at most `steps`
    double first_rate = 0;         ///< of step 0, if there is warm-up; finite, at least 0
    Decay decay = Decay::linear;   ///< to 0
};

/// The learning rate of each step: a straight line from first_rate to rate, then the decay. The
/// gradual warm-up of Goyal et al. (Accurate, Large Minibatch SGD, 2017) goes from the rate of one
/// process to that of the linear scaling rule:
///
///     const auto epoch = gz::steps_per_epoch(train.size(), 32);
///     const gz::Schedule schedule({.rate = gz::scale_learning_rate(0.1),
///                                  .steps = 90 * epoch,
///                                  .warmup_steps = 5 * epoch,
///                                  .first_rate = 0.1});
///
/// A value without state: it resumes with the step's number. Local; any thread.
class GUOZHUANG_API Schedule {
public:
    /// Throws Error(invalid_argument) for options out of range.
    explicit Schedule(const ScheduleOptions& options);

    /// The rate of a step; the first is 0. Step warmup_steps has exactly options.rate; with a
    /// decay, step options.steps, the first that is not made, and all after it have exactly 0.
    double rate(std::size_t step) const noexcept;

private:
    ScheduleOptions options_;
};

}  // namespace guozhuang
