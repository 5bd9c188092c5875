#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <string>
#include <vector>

namespace guozhuang::experiment {

/// One of `of` equal parts of a batch.
struct Share {
    std::size_t number = 0, of = 1;
};

/// Sums over test samples.
struct Score {
    double loss = 0, correct = 0, samples = 0;
};

/// The task's optimizer as a rule for a ShardedOptimizer.
struct Rule {
    bool adam = false;  ///< otherwise SGD with momentum
    double momentum = 0, beta1 = 0, beta2 = 0, rate = 0;
};

/// A model with its data and its optimizer, which know of one process only.
class Task {
public:
    virtual ~Task() = default;

    /// Host memory, f32. Lives as long as the task.
    virtual std::vector<Parameter> parameters() = 0;
    /// Overwrites the gradients with those of the mean loss, which it returns, of a share of that
    /// step's batch. Calls `done`, if any, with the number of each parameter whose gradient is
    /// final.
    virtual double backward(std::size_t step, Share share,
                            const std::function<void(std::size_t)>& done) = 0;
    /// Changes the values by the gradients.
    virtual void update() = 0;
    /// The rule by which update() changes the values in that step. Any thread.
    virtual Rule rule(std::size_t step) const = 0;
    /// How many bytes the optimizer keeps from step to step.
    virtual std::size_t state_bytes() const = 0;
    /// Tests a share of the test samples.
    virtual Score score(Share share) = 0;
};

/// How long a task trains, and from where it starts.
struct TaskOptions {
    std::string model = "fashion";
    std::size_t steps = 200, batch = 128;
    double rate = 0;  ///< of the first step; 0: the model's own
    std::uint32_t seed = 7;
    std::filesystem::path data = {};  ///< a directory; empty: where Debian's packages put it
};

/// Throws std::runtime_error for an unknown model, or without its data.
std::unique_ptr<Task> make_task(const TaskOptions& options);

}  // namespace guozhuang::experiment
