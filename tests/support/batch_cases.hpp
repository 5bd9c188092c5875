#pragma once

#include <algorithm>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/error_cases.hpp"
#include "support/report.hpp"

/// Batches that fail on one rank, and what the others see of it.
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
        for (std::size_t i = 0; i < count; ++i) all.push_back({text_of("p", i), values[i], gradients[i]});
        return all;
    }
    /// The same in every batch, and on no rank what the average is; calls the hook for as many, if hooks are used.
    void backward(std::size_t marks = count) {
        const auto own = static_cast<float>(420 * session.rank() * session.rank());
        for (std::size_t i = 0; i < count; ++i) gradients[i].assign(2, own + static_cast<float>(i));
        for (std::size_t i = 0; uses_hooks && i < marks; ++i) optimizer.on_gradient()(order(i));
    }
    std::size_t order(std::size_t i) const { return (i + static_cast<std::size_t>(session.rank())) % count; }
    /// That so many steps have been made, each with the averages of all ranks.
    void expect_steps(Report& report, int steps, const std::string& what) const {
        report.expect_equal(descent.steps, steps, what + ": steps");
        const auto mean = static_cast<float>(70 * (session.size() - 1) * (2 * session.size() - 1));
        for (std::size_t i = 0; i < count; ++i) {
            const auto value = -static_cast<float>(steps) * (mean + static_cast<float>(i));
            report.expect(values[i] == std::vector<float>(2, value),
                          text_of(what, ": p", i, " is ", values[i][0], " instead of ", value, " after ", steps, " steps"));
        }
    }

    Session& session;
    bool uses_hooks = true;
    std::vector<std::vector<float>> values = std::vector(count, std::vector<float>(2)), gradients = values;
    Descent descent{*this};
    DistributedOptimizer<Descent> optimizer;
};

/// A good batch, for everybody.
inline void train_on(Trainer& trainer, Report& report, int steps, const std::string& what) {
    trainer.backward();
    report.expect(trainer.optimizer.step(), what + ": stepped");
    trainer.expect_steps(report, steps, what);
}

/// "rank 2", "ranks 0,2".
inline std::string text_of_ranks(const std::set<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (const int rank : ranks) text += text_of(rank == *ranks.begin() ? "" : ",", rank);
    return text;
}

/// Some ranks cannot go on in the middle of backward, after any number of gradients: nobody steps, and all go on.
inline void discarded_batches(Session& session, Report& report) {
    const int last = session.size() - 1;
    std::set<int> all, odd;
    for (int rank = 0; rank <= last; ++rank) (rank % 2 == 1 ? odd : all).insert(rank);
    all.merge(std::set(odd));
    for (const bool uses_hooks : {true, false}) {
        Trainer trainer(session);
        trainer.uses_hooks = uses_hooks;
        int steps = 0;
        train_on(trainer, report, ++steps, "before");
        for (const std::size_t marks : {std::size_t{0}, std::size_t{1}, Trainer::count - 1, Trainer::count}) {
            for (const auto& failing : {std::set{last}, std::set{0}, odd, all}) {
                if (failing.empty()) continue;
                const auto what = text_of(uses_hooks ? "hooks, " : "", marks, " gradients, ", text_of_ranks(failing));
                if (failing.contains(session.rank())) {
                    trainer.backward(marks);
                    trainer.optimizer.discard("no such file");
                } else {
                    trainer.backward();
                    const auto error = error_of([&] { trainer.optimizer.step(); });
                    report.expect(error && error->code() == ErrorCode::discarded, what + ": discarded");
                    if (!error) continue;
                    // The first bundle that fails names those that had not submitted that one.
                    const std::set<int> named(error->ranks().begin(), error->ranks().end());
                    report.expect(!named.empty() && std::ranges::includes(failing, named), what + ": the ranks");
                    if (!uses_hooks || failing.size() == 1) report.expect(named == failing, what + ": all of them");
                    const auto text = text_of(" was discarded by ", text_of_ranks(named), ": no such file");
                    report.expect(std::string(error->what()).ends_with(text), text_of(what, ": says ", error->what()));
                }
                trainer.expect_steps(report, steps, what);
                train_on(trainer, report, ++steps, what + ", the next batch");
            }
        }
    }
}

/// In a batch of several passes; with gradients that only accumulate; for different reasons.
inline void discarded_in_other_ways(Session& session, Report& report) {
    const int last = session.size() - 1;
    {
        Trainer trainer(session, {.backward_passes_per_step = 3});
        trainer.backward();
        report.expect(!trainer.optimizer.step(), "a pass that accumulates");
        const auto rest = [&] {
            for (int pass = 1; pass < 3; ++pass) {
                trainer.backward();
                trainer.optimizer.step();
            }
        };
        session.rank() == last ? trainer.optimizer.discard("") : expect_error(report, ErrorCode::discarded, {"no reason given"}, rest);
        for (int pass = 0; pass < 3; ++pass) {
            trainer.backward();
            report.expect(trainer.optimizer.step() == (pass == 2), text_of("pass ", pass, " of the next batch"));
        }
        trainer.expect_steps(report, 1, "passes");
    }
    Trainer trainer(session);
    if (session.rank() == 0) {
        std::string text;
        for (int rank = 1; rank <= last; ++rank) text += text_of(rank > 1 ? "; " : "", "by rank ", rank, ": reason ", rank);
        trainer.backward();
        last == 0 ? trainer.optimizer.discard("") : expect_error(report, ErrorCode::discarded, {text}, [&] { trainer.optimizer.step(); });
    } else {
        const auto guard = trainer.optimizer.no_sync();
        trainer.backward();
        trainer.optimizer.discard(text_of("reason ", session.rank()));
    }
    train_on(trainer, report, 1, "after no_sync");
    expect_usable(session, report);
}

/// A hook that throws on one rank makes the batch fail, whatever that rank does with the exception.
inline void hooks_that_throw(Session& session, Report& report) {
    const int last = session.size() - 1;
    Trainer trainer(session);
    train_on(trainer, report, 1, "before");
    const auto fail = [&](const std::string& what, const std::string& text, auto&& hook) {
        const auto before = trainer.descent.steps;
        trainer.backward(1);
        if (session.rank() == last) {
            expect_error(report, ErrorCode::invalid_argument, {text}, [&] { hook(trainer.optimizer.on_gradient()); });
            for (std::size_t i = 1; i < Trainer::count; ++i) trainer.optimizer.on_gradient()(trainer.order(i));  // caught and gone on
            expect_error(report, ErrorCode::invalid_argument, {text}, [&] { trainer.optimizer.step(); });
        } else {
            for (std::size_t i = 1; i < Trainer::count; ++i) trainer.optimizer.on_gradient()(trainer.order(i));
            expect_error(report, ErrorCode::discarded, {text_of("was discarded by rank ", last, ": "), text},
                         [&] { trainer.optimizer.step(); });
        }
        trainer.expect_steps(report, before, what);
        train_on(trainer, report, before + 1, what + ", the next batch");
    };
    fail("unknown", "there is no parameter called 'p9'", [](auto hook) { hook("p9"); });
    fail("unknown place", "there is no parameter 9; there are 4", [](auto hook) { hook(9); });
    fail("twice", "was marked ready twice in one step", [&](auto hook) { hook(trainer.order(0)); });
    expect_usable(session, report);
}

/// The exception of a backward that nobody discarded comes out with the next one.
inline void batches_that_are_not_ended(Session& session, Report& report) {
    const int last = session.size() - 1;
    Trainer trainer(session);
    const std::vector<std::string> twice = {"marked ready twice", "discard()"};
    if (session.rank() == last) {
        trainer.backward(2);
        expect_error(report, ErrorCode::invalid_argument, twice, [&] { trainer.optimizer.on_gradient()(trainer.order(0)); });
        expect_error(report, ErrorCode::invalid_argument, twice, [&] { trainer.optimizer.step(); });
    } else {
        trainer.backward();
        expect_error(report, ErrorCode::discarded, twice, [&] { trainer.optimizer.step(); });
    }
    train_on(trainer, report, 1, "the next batch");
}

/// A step of the wrapped optimizer that throws on some ranks is made again, with the same averages.
inline void retried_steps(Session& session, Report& report) {
    for (const bool uses_hooks : {true, false}) {
        for (const bool everywhere : {true, false}) {
            Trainer trainer(session);
            trainer.uses_hooks = uses_hooks;
            const auto what = text_of(uses_hooks ? "hooks, " : "", everywhere ? "all ranks" : "the last rank");
            for (int step = 1; step <= 3; ++step) {
                if (everywhere || session.rank() == session.size() - 1) trainer.descent.throws = 2;
                trainer.backward();
                for (int attempt = 0; attempt < 3; ++attempt) {
                    try {
                        report.expect(trainer.optimizer.step(), what + ": stepped");
                        break;
                    } catch (const std::runtime_error& error) {
                        report.expect_equal(std::string(error.what()), std::string("no step"), what);
                        trainer.optimizer.synchronize();  // does nothing
                    }
                }
                trainer.expect_steps(report, step, what);
            }
        }
    }
    expect_usable(session, report);
}

/// Where a step is not made again, that batch is left out: on all ranks, or they have parted and are told so.
inline void steps_left_out(Session& session, Report& report) {
    for (const bool uses_hooks : {true, false}) {
        const std::string what = uses_hooks ? "left out, hooks" : "left out";
        Trainer trainer(session);
        trainer.uses_hooks = uses_hooks;
        trainer.descent.throws = 1;
        trainer.backward();
        bool thrown = false;
        try {
            trainer.optimizer.step();
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        report.expect(thrown, what + ": thrown");
        train_on(trainer, report, 1, what);
        trainer.backward();
        trainer.optimizer.synchronize();
        trainer.optimizer.discard("not finite");
        train_on(trainer, report, 2, what + ", skipped");
        if (session.size() == 1) continue;
        const bool alone = session.rank() == session.size() - 1;
        trainer.backward();
        trainer.optimizer.synchronize();
        if (alone)
            trainer.optimizer.discard("this rank thinks so");
        else
            trainer.optimizer.step();
        for (int step = 0; step < 2; ++step) {
            trainer.backward();
            expect_error(report, ErrorCode::mismatch,
                         {"numbers of batches that were reduced and then left out differ: " + sides(session, "2", "3")},
                         [&] { trainer.optimizer.step(); });
        }
    }
    expect_usable(session, report);
}

/// Nothing is zeroed by a step that fails for reasons of this rank, and the others hear of it.
inline void gradients_of_a_step_that_fails(Session& session, Report& report) {
    std::vector<float> value(2), host(2, 5), device(2, 6);
    TensorView on_device(device);
    on_device.device = {DeviceKind::fake, 0};
    GradientReducer reducer({{"marked", value, value}, {"device", value, on_device}, {"host", value, host}}, {.session = &session});
    const bool odd = session.rank() == session.size() - 1;
    reducer.mark("marked");
    if (!odd) reducer.mark("device");
    if (odd)
        expect_error(report, ErrorCode::invalid_argument, {"'device' was not marked in this step"}, [&] { reducer.finish_pass(); });
    else
        expect_error(report, ErrorCode::discarded, {"'device' was not marked in this step"}, [&] { reducer.finish_pass(); });
    report.expect(!odd || host == std::vector<float>(2, 5), "a gradient that was not marked is as it was");
    expect_usable(session, report);
}

/// What ranks must set alike is compared by the first reduction.
inline void unlike_options(Session& session, Report& report) {
    if (session.size() < 2) return;
    const auto step = [&](const OptimizerOptions& options) {
        return [&session, options] {
            Trainer trainer(session, options);
            for (bool stepped = false; !stepped;) {
                trainer.backward();
                stepped = trainer.optimizer.step();
            }
        };
    };
    const std::string text = "allreduce 'net/bundle 0': values of ";
    expect_mismatch(session, report, text + "backward_passes_per_step differ: " + sides(session, "1", "2"), step({.name = "net"}),
                    step({.name = "net", .backward_passes_per_step = 2}));
    expect_mismatch(session, report, text + "check_values differ: " + sides(session, "true", "false"), step({.name = "net"}),
                    step({.name = "net", .check_values = false}));
}

/// Parameters that were not made the same are named by the first step.
inline void unlike_values(Session& session, Report& report) {
    if (session.size() < 2) return;
    const bool odd = session.rank() == session.size() - 1;
    const auto refused = [&](Trainer& trainer, const std::string& name) {
        trainer.backward();
        const auto steps = trainer.descent.steps;
        const auto error = error_of([&] { trainer.optimizer.step(); });
        report.expect(error && error->code() == ErrorCode::mismatch, name + ": mismatch");
        if (!error) return;
        const std::string text = error->what(), begin = text_of("allreduce '", name, "': values (broadcast_parameters");
        report.expect(text.starts_with(begin), text);
        report.expect(text.find(text_of(" on ", all_but_last(session), "; ")) != std::string::npos, text);
        report.expect(text.ends_with(text_of(" on rank ", session.size() - 1)), text);
        report.expect(error->tensor() == name && error->ranks() == std::vector<int>{session.size() - 1}, "tensor and rank");
        report.expect_equal(trainer.descent.steps, steps, "nobody steps");
    };
    Trainer trainer(session);
    if (odd) trainer.values[1][1] = trainer.values[3][0] = 1e-20F;
    for (int attempt = 0; attempt < 2; ++attempt) refused(trainer, "p1");
    broadcast_parameters(trainer.parameters(), 0, &session);
    train_on(trainer, report, 1, "once they are the same");
    if (odd) trainer.values[2][0] += 1;
    trainer.backward();
    report.expect(trainer.optimizer.step(), "compared once");
    join({.session = &session});
    refused(trainer, "p2");  // and after each join
    Trainer unchecked(session, {.check_values = false});
    unchecked.values[0][0] = static_cast<float>(session.rank());
    unchecked.backward();
    report.expect(unchecked.optimizer.step(), "not compared");
    expect_usable(session, report);
}

/// Ranks that run out of data before their first step, or begin with a batch that is discarded.
inline void values_of_late_ranks(Session& session, Report& report) {
    if (session.size() < 2) return;
    Trainer trainer(session);
    if (session.rank() == 0) {
        trainer.backward(1);
        trainer.optimizer.discard("nobody hears it");
        trainer.backward();
        report.expect(trainer.optimizer.step(), "alone");
        trainer.backward();
        trainer.optimizer.synchronize();
        trainer.optimizer.discard("not finite, which ranks that have joined cannot know");
    }
    const int last = join({.session = &session});
    report.expect_equal(last, 0, "the last to join");
    trainer.backward();
    expect_error(report, ErrorCode::mismatch, {"'p1': values (broadcast_parameters makes them the same) differ: "},
                 [&] { trainer.optimizer.step(); });  // p0 moves by 0 on rank 0
    broadcast_parameters(trainer.parameters(), 1, &session);
    trainer.descent.steps = 0;
    trainer.backward();
    session.rank() == 0 ? trainer.optimizer.discard("late")
                        : expect_error(report, ErrorCode::discarded, {"by rank 0: late"}, [&] { trainer.optimizer.step(); });
    train_on(trainer, report, 1, "in the end");
}

/// Statistics, say, that are broadcast and not trained.
inline void parameters_without_gradient(Session& session, Report& report) {
    std::vector<float> weight(2), statistics(3, static_cast<float>(session.rank())), gradient(2, static_cast<float>(session.rank()));
    const std::vector<Parameter> parameters{{"weight", weight, gradient}, {"statistics", statistics, {}}};
    broadcast_parameters(parameters, 0, &session);
    report.expect(statistics[0] == 0, "broadcast");
    statistics[0] = static_cast<float>(session.rank());
    GradientReducer reducer(parameters, {.session = &session});
    reducer.mark("weight");
    report.expect(reducer.finish_pass(), "stepped");
    report.expect(gradient[1] == static_cast<float>(session.size() - 1) / 2, "averaged");
    report.expect(statistics[0] == static_cast<float>(session.rank()), "left alone");
    clip_by_global_norm(parameters, 1);
    expect_error(report, ErrorCode::invalid_argument, {"'statistics' was given without a gradient"}, [&] { reducer.mark("statistics"); });
    reducer.discard("");
    expect_error(report, ErrorCode::invalid_argument, {"no parameter has a gradient"}, [&] {
        GradientReducer(std::vector<Parameter>{{"statistics", statistics, {}}}, {.session = &session});
    });
}

/// Errors name ranks of the job, not places in the set; the others train on.
inline void discarded_in_a_set(Session& session, Report& report) {
    if (session.size() < 3) return;
    const int last = session.size() - 1;
    const auto set = ProcessSet::create({1, last}, &session);
    if (set.contains(session.rank())) {
        Trainer trainer(session, {.process_set = set});
        trainer.backward();
        if (session.rank() == last) {
            trainer.optimizer.discard("no such file");
        } else {
            const auto error = error_of([&] { trainer.optimizer.step(); });
            report.expect(error && std::string(error->what()).ends_with(text_of("was discarded by rank ", last, ": no such file")),
                          "the text");
            report.expect(error && error->ranks() == std::vector<int>{last}, "the rank");
        }
        trainer.backward();
        report.expect(trainer.optimizer.step(), "the next batch of the set");
    }
    expect_usable(session, report);
}

/// Rounds of a plan.
inline void discarded_rounds(Session& session, Report& report) {
    std::vector<float> a(2), b(2);
    Plan plan({{{"a", a}}, {{"b", b}}}, {.name = "p", .op = ReduceOp::sum, .session = &session});
    for (int round = 0; round < 3; ++round) {
        a.assign(2, 1);
        b.assign(2, 1);
        plan.ready(0);
        if (session.rank() == 0) {
            plan.discard("why");
        } else {
            plan.ready(1);
            expect_error(report, ErrorCode::discarded, {"allreduce 'p/bundle 1' was discarded by rank 0: why"}, [&] { plan.wait(); });
        }
        const auto size = static_cast<float>(session.size());
        report.expect(a == std::vector<float>(2, size) && b == std::vector<float>(2, 1), "what all had made ready, and nothing else");
        plan.ready(1);
        plan.ready(0);
        plan.wait();
        report.expect(b == std::vector<float>(2, size), "the next round");
    }
    if (session.size() == 1) return;
    plan.agree({{"a", "colours", session.rank() == 0 ? "red" : "blue"}});
    plan.ready(0);
    expect_error(report, ErrorCode::mismatch, {"allreduce 'a': colours differ: red on rank 0; blue on rank"}, [&] { plan.wait(); });
    plan.agree({});
    plan.ready(0);
    plan.wait();
    expect_error(report, ErrorCode::invalid_argument, {"longer than 65536 bytes"}, [&] {
        plan.agree({{"", std::string(65'537, 'x'), ""}});
    });
}

inline const RankCase all_batch_cases[] = {discarded_batches,
                                           discarded_in_other_ways,
                                           hooks_that_throw,
                                           batches_that_are_not_ended,
                                           retried_steps,
                                           steps_left_out,
                                           gradients_of_a_step_that_fails,
                                           unlike_options,
                                           unlike_values,
                                           values_of_late_ranks,
                                           parameters_without_gradient,
                                           discarded_in_a_set,
                                           discarded_rounds};

}  // namespace guozhuang::test
