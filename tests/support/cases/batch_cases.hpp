#pragma once

#include <algorithm>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/report.hpp"

/// Batches that fail on one rank, and the errors on the others.
namespace guozhuang::test {

/// Four parameters of two numbers, one bundle each, and an optimizer that throws when told to.
struct Trainer {
    static constexpr std::size_t count = 4;
    struct Descent {
        Trainer& trainer;
        int throws = 0;  ///< this often
        int steps = 0;
        void step() {
            if (throws-- > 0) throw std::runtime_error("no step");
            throws = 0;
            ++steps;
            for (std::size_t i = 0; i < count; ++i)
                for (std::size_t k = 0; k < 2; ++k) trainer.values[i][k] -= trainer.gradients[i][k];
        }
    };

    explicit Trainer(Session& s, OptimizerOptions options = {})
        : session(s), optimizer(descent, parameters(), with(std::move(options), s)) {}

    static OptimizerOptions with(OptimizerOptions options, Session& session) {
        options.bundle_bytes = options.first_bundle_bytes = 0;
        options.session = &session;
        return options;
    }
    std::vector<Parameter> parameters() {
        std::vector<Parameter> all;
        for (std::size_t i = 0; i < count; ++i)
            all.push_back({text_of("p", i), values[i], gradients[i]});
        return all;
    }
    /// Writes the same gradients in every batch, different from the average on every rank; calls
    /// the hook for this many, if hooks are used.
    void backward(std::size_t marks = count) {
        const auto own = static_cast<float>(420 * session.rank() * session.rank());
        for (std::size_t i = 0; i < count; ++i) gradients[i].assign(2, own + static_cast<float>(i));
        for (std::size_t i = 0; uses_hooks && i < marks; ++i) optimizer.on_gradient()(order(i));
    }
    std::size_t order(std::size_t i) const {
        return (i + static_cast<std::size_t>(session.rank())) % count;
    }
    /// Expects that `steps` steps have been made, each with the averages of all ranks.
    void expect_steps(Report& report, int steps, const std::string& what) const {
        report.expect_equal(descent.steps, steps, what + ": steps");
        const auto mean = static_cast<float>(70 * (session.size() - 1) * (2 * session.size() - 1));
        for (std::size_t i = 0; i < count; ++i) {
            const auto value = -static_cast<float>(steps) * (mean + static_cast<float>(i));
            report.expect(values[i] == std::vector<float>(2, value),
                          text_of(what, ": p", i, " is ", values[i][0], " instead of ", value,
                                  " after ", steps, " steps"));
        }
    }

    Session& session;
    bool uses_hooks = true;
    std::vector<std::vector<float>> values = std::vector(count, std::vector<float>(2)),
                                    gradients = values;
    Descent descent{*this};
    DistributedOptimizer<Descent> optimizer;
};

/// A good batch, for everybody.
void train_on(Trainer& trainer, Report& report, int steps, const std::string& what);

/// "rank 2", "ranks 0,2".
std::string text_of_ranks(const std::set<int>& ranks);

/// Some ranks cannot go on in the middle of backward, after any number of gradients: nobody steps,
/// and all go on.
void discarded_batches(Session& session, Report& report);

/// In a batch of several passes; with gradients that only accumulate; for different reasons.
void discarded_in_other_ways(Session& session, Report& report);

/// A hook that throws on one rank makes the batch fail, whatever that rank does with the exception.
void hooks_that_throw(Session& session, Report& report);

/// The exception of a backward that nobody discarded comes out with the next one.
void batches_that_are_not_ended(Session& session, Report& report);

/// A step of the wrapped optimizer that throws on some ranks is made again, with the same averages.
void retried_steps(Session& session, Report& report);

/// If a step is not made again, discard() skips the batch: on all ranks, or their parameters have
/// diverged and an error says so.
void steps_left_out(Session& session, Report& report);

/// A hook of the next batch throws if neither step() nor discard() has ended the one before.
void steps_that_are_not_ended(Session& session, Report& report);

/// Nothing is zeroed by a step that fails for reasons of this rank, and the others hear of it.
void gradients_that_were_not_marked(Session& session, Report& report);

/// The first reduction compares the options that ranks must set alike.
void unlike_options(Session& session, Report& report);

/// The first step names parameters that differ between ranks.
void unlike_values(Session& session, Report& report);

/// Values that each rank changes in its own way between two backwards, and restores before step().
void perturbed_values(Session& session, Report& report);

/// Ranks that run out of data before their first step, or begin with a batch that is discarded.
void values_of_late_ranks(Session& session, Report& report);

/// Statistics, say, that are broadcast and not trained.
void parameters_without_gradient(Session& session, Report& report);

/// Errors name ranks of the job, not group ranks; the others train on.
void discarded_in_a_set(Session& session, Report& report);

/// Rounds of a plan.
void discarded_rounds(Session& session, Report& report);

inline const RankCase all_batch_cases[] = {discarded_batches,
                                           discarded_in_other_ways,
                                           hooks_that_throw,
                                           batches_that_are_not_ended,
                                           retried_steps,
                                           steps_left_out,
                                           steps_that_are_not_ended,
                                           gradients_that_were_not_marked,
                                           unlike_options,
                                           unlike_values,
                                           perturbed_values,
                                           values_of_late_ranks,
                                           parameters_without_gradient,
                                           discarded_in_a_set,
                                           discarded_rounds};

}  // namespace guozhuang::test
