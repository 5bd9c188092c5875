#include "support/cases/batch_cases.hpp"

#include <cmath>

namespace guozhuang::test {

void train_on(Trainer& trainer, Report& report, int steps, const std::string& what) {
    trainer.backward();
    report.expect(trainer.optimizer.step(), what + ": stepped");
    trainer.expect_steps(report, steps, what);
}

std::string text_of_ranks(const std::set<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (const int rank : ranks) text += text_of(rank == *ranks.begin() ? "" : ",", rank);
    return text;
}

void discarded_batches(Session& session, Report& report) {
    const int last = session.size() - 1;
    std::set<int> all, odd;
    for (int rank = 0; rank <= last; ++rank) (rank % 2 == 1 ? odd : all).insert(rank);
    all.merge(std::set(odd));
    for (const bool uses_hooks : {true, false}) {
        Trainer trainer(session);
        trainer.uses_hooks = uses_hooks;
        int steps = 0;
        train_on(trainer, report, ++steps, "before");
        for (const std::size_t marks :
             {std::size_t{0}, std::size_t{1}, Trainer::count - 1, Trainer::count}) {
            for (const auto& failing : {std::set{last}, std::set{0}, odd, all}) {
                if (failing.empty()) continue;
                const auto what = text_of(uses_hooks ? "hooks, " : "", marks, " gradients, ",
                                          text_of_ranks(failing));
                if (failing.contains(session.rank())) {
                    trainer.backward(marks);
                    trainer.optimizer.discard("no such file");
                } else {
                    trainer.backward();
                    const auto error = error_of([&] { trainer.optimizer.step(); });
                    report.expect(error && error->code() == ErrorCode::discarded,
                                  what + ": discarded");
                    if (!error) continue;
                    // The first bundle that fails names those that had not submitted that one.
                    const std::set<int> named(error->ranks().begin(), error->ranks().end());
                    report.expect(!named.empty() && std::ranges::includes(failing, named),
                                  what + ": the ranks");
                    if (!uses_hooks || failing.size() == 1)
                        report.expect(named == failing, what + ": all of them");
                    const auto text =
                        text_of(" was discarded by ", text_of_ranks(named), ": no such file");
                    report.expect(std::string(error->what()).ends_with(text),
                                  text_of(what, ": says ", error->what()));
                }
                trainer.expect_steps(report, steps, what);
                train_on(trainer, report, ++steps, what + ", the next batch");
            }
        }
    }
}

void discarded_in_other_ways(Session& session, Report& report) {
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
        session.rank() == last
            ? trainer.optimizer.discard("")
            : expect_error(report, ErrorCode::discarded, {"no reason given"}, rest);
        for (int pass = 0; pass < 3; ++pass) {
            trainer.backward();
            report.expect(trainer.optimizer.step() == (pass == 2),
                          text_of("pass ", pass, " of the next batch"));
        }
        trainer.expect_steps(report, 1, "passes");
    }
    Trainer trainer(session);
    if (session.rank() == 0) {
        std::string text;
        for (int rank = 1; rank <= last; ++rank)
            text += text_of(rank > 1 ? "; " : "", "by rank ", rank, ": reason ", rank);
        trainer.backward();
        last == 0
            ? trainer.optimizer.discard("")
            : expect_error(report, ErrorCode::discarded, {text}, [&] { trainer.optimizer.step(); });
    } else {
        const auto guard = trainer.optimizer.no_sync();
        trainer.backward();
        trainer.optimizer.discard(text_of("reason ", session.rank()));
    }
    train_on(trainer, report, 1, "after no_sync");
    expect_usable(session, report);
}

void hooks_that_throw(Session& session, Report& report) {
    const int last = session.size() - 1;
    Trainer trainer(session);
    train_on(trainer, report, 1, "before");
    const auto fail = [&](const std::string& what, const std::string& text, auto&& hook) {
        const auto before = trainer.descent.steps;
        trainer.backward(1);
        if (session.rank() == last) {
            expect_error(report, ErrorCode::invalid_argument, {text},
                         [&] { hook(trainer.optimizer.on_gradient()); });
            // The program has caught the exception and goes on.
            for (std::size_t i = 1; i < Trainer::count; ++i)
                trainer.optimizer.on_gradient()(trainer.order(i));
            expect_error(report, ErrorCode::invalid_argument, {text},
                         [&] { trainer.optimizer.step(); });
        } else {
            for (std::size_t i = 1; i < Trainer::count; ++i)
                trainer.optimizer.on_gradient()(trainer.order(i));
            expect_error(report, ErrorCode::discarded,
                         {text_of("was discarded by rank ", last, ": "), text},
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

void batches_that_are_not_ended(Session& session, Report& report) {
    const int last = session.size() - 1;
    Trainer trainer(session);
    const std::vector<std::string> twice = {"marked ready twice", "discard()"};
    if (session.rank() == last) {
        trainer.backward(2);
        expect_error(report, ErrorCode::invalid_argument, twice,
                     [&] { trainer.optimizer.on_gradient()(trainer.order(0)); });
        expect_error(report, ErrorCode::invalid_argument, twice, [&] { trainer.optimizer.step(); });
    } else {
        trainer.backward();
        expect_error(report, ErrorCode::discarded, twice, [&] { trainer.optimizer.step(); });
    }
    train_on(trainer, report, 1, "the next batch");
}

void retried_steps(Session& session, Report& report) {
    for (const bool uses_hooks : {true, false}) {
        for (const bool everywhere : {true, false}) {
            Trainer trainer(session);
            trainer.uses_hooks = uses_hooks;
            const auto what =
                text_of(uses_hooks ? "hooks, " : "", everywhere ? "all ranks" : "the last rank");
            for (int step = 1; step <= 3; ++step) {
                if (everywhere || session.rank() == session.size() - 1) trainer.descent.throws = 2;
                trainer.backward();
                for (int attempt = 0; attempt < 3; ++attempt) {
                    try {
                        report.expect(trainer.optimizer.step(), what + ": stepped");
                        break;
                    } catch (const std::runtime_error& error) {
                        report.expect_equal(std::string(error.what()), std::string("no step"),
                                            what);
                        trainer.optimizer.synchronize();  // does nothing
                    }
                }
                trainer.expect_steps(report, step, what);
            }
        }
    }
    expect_usable(session, report);
}

namespace {

bool optimizer_throws(Trainer& trainer) try {
    trainer.optimizer.step();
    return false;
} catch (const std::runtime_error& error) {
    return error.what() == std::string("no step");
}

}  // namespace

void steps_left_out(Session& session, Report& report) {
    for (const bool uses_hooks : {true, false}) {
        const std::string what = uses_hooks ? "left out, hooks" : "left out";
        Trainer trainer(session);
        trainer.uses_hooks = uses_hooks;
        trainer.descent.throws = 1;
        trainer.backward();
        report.expect(optimizer_throws(trainer), what + ": thrown");
        trainer.optimizer.discard("no step");
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
                         {"numbers of batches that were reduced and then left out differ: " +
                          sides(session, "2", "3")},
                         [&] { trainer.optimizer.step(); });
        }
    }
    expect_usable(session, report);
}

void steps_that_are_not_ended(Session& session, Report& report) {
    const std::vector<std::string> text = {"a batch that step() will not end", "discard()"};
    for (const bool pauses : {false, true}) {
        Trainer trainer(session);
        trainer.descent.throws = 1;
        trainer.backward();
        report.expect(optimizer_throws(trainer), "the optimizer throws");
        const auto mark = [&] { trainer.optimizer.on_gradient()(trainer.order(0)); };
        if (pauses) {
            const auto paused = trainer.optimizer.no_sync();
            expect_error(report, ErrorCode::invalid_argument, text, mark);
        } else {
            expect_error(report, ErrorCode::invalid_argument, text, mark);
        }
        expect_error(report, ErrorCode::invalid_argument, text, [&] { trainer.optimizer.step(); });
        train_on(trainer, report, 1, "the next batch");
    }
}

void gradients_that_were_not_marked(Session& session, Report& report) {
    std::vector<float> value(2), host(2, 5), device(2, 6);
    TensorView on_device(device);
    on_device.device = {DeviceKind::cuda, 0};
    GradientReducer reducer(
        {{"marked", value, value}, {"device", value, on_device}, {"host", value, host}},
        {.session = &session});
    const bool odd = session.rank() == session.size() - 1;
    reducer.mark("marked");
    if (!odd) reducer.mark("device");
    reducer.finish_pass();
    const TensorView views[] = {on_device};
    const auto marked = static_cast<double>(session.size() - 1);
    const double average = static_cast<float>(6 * marked) / static_cast<float>(session.size());
    report.expect(std::abs(norm(views, {.session = &session}) - average * std::sqrt(2.0)) < 1e-5,
                  "a gradient on a device that one rank did not mark is zero there");
    report.expect(host == std::vector<float>(2, 0), "one that no rank marked is zero");
    expect_usable(session, report);
}

void unlike_options(Session& session, Report& report) {
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
    expect_mismatch(session, report,
                    text + "backward_passes_per_step differ: " + sides(session, "1", "2"),
                    step({.name = "net"}), step({.name = "net", .backward_passes_per_step = 2}));
    expect_mismatch(session, report,
                    text + "check_values differ: " + sides(session, "true", "false"),
                    step({.name = "net"}), step({.name = "net", .check_values = false}));
}

void unlike_values(Session& session, Report& report) {
    if (session.size() < 2) return;
    const bool odd = session.rank() == session.size() - 1;
    const auto refused = [&](Trainer& trainer, const std::string& name) {
        trainer.backward();
        const auto steps = trainer.descent.steps;
        const auto error = error_of([&] { trainer.optimizer.step(); });
        report.expect(error && error->code() == ErrorCode::mismatch, name + ": mismatch");
        if (!error) return;
        const std::string text = error->what(),
                          begin = text_of("allreduce '", name, "': values (broadcast_parameters");
        report.expect(text.starts_with(begin), text);
        report.expect(text.find(text_of(" on ", all_but_last(session), "; ")) != std::string::npos,
                      text);
        report.expect(text.ends_with(text_of(" on rank ", session.size() - 1)), text);
        report.expect(
            error->tensor() == name && error->ranks() == std::vector<int>{session.size() - 1},
            "tensor and rank");
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

void perturbed_values(Session& session, Report& report) {
    for (const int passes : {1, 2}) {
        Trainer trainer(session, {.backward_passes_per_step = passes});
        for (int batch = 0; batch < 2; ++batch) {
            if (passes == 1) {
                const auto only_accumulates = trainer.optimizer.no_sync();
                trainer.backward();
            } else {
                trainer.backward();
                report.expect(!trainer.optimizer.step(), "the first pass accumulates");
            }
            const auto values = trainer.values;
            for (auto& value : trainer.values) value[0] += static_cast<float>(session.rank());
            trainer.backward();
            trainer.values = values;
            report.expect(trainer.optimizer.step(), "the values were the same, and are again");
            join({.session = &session});
        }
    }
}

void values_of_late_ranks(Session& session, Report& report) {
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
    expect_error(report, ErrorCode::mismatch,
                 {"'p1': values (broadcast_parameters makes them the same; where they may differ, "
                  "OptimizerOptions::check_values = false) differ: "},
                 [&] { trainer.optimizer.step(); });  // p0 moves by 0 on rank 0
    broadcast_parameters(trainer.parameters(), 1, &session);
    trainer.descent.steps = 0;
    trainer.backward();
    session.rank() == 0 ? trainer.optimizer.discard("late")
                        : expect_error(report, ErrorCode::discarded, {"by rank 0: late"},
                                       [&] { trainer.optimizer.step(); });
    train_on(trainer, report, 1, "in the end");
}

void parameters_without_gradient(Session& session, Report& report) {
    std::vector<float> weight(2), statistics(3, static_cast<float>(session.rank())),
        gradient(2, static_cast<float>(session.rank()));
    const std::vector<Parameter> parameters{{"weight", weight, gradient},
                                            {"statistics", statistics, {}}};
    broadcast_parameters(parameters, 0, &session);
    report.expect(statistics[0] == 0, "broadcast");
    statistics[0] = static_cast<float>(session.rank());
    GradientReducer reducer(parameters, {.session = &session});
    reducer.mark("weight");
    report.expect(reducer.finish_pass(), "stepped");
    report.expect(gradient[1] == static_cast<float>(session.size() - 1) / 2, "averaged");
    report.expect(statistics[0] == static_cast<float>(session.rank()), "left alone");
    clip_by_global_norm(parameters, 1);
    expect_error(report, ErrorCode::invalid_argument, {"'statistics' was given without a gradient"},
                 [&] { reducer.mark("statistics"); });
    reducer.discard("");
    expect_error(report, ErrorCode::invalid_argument, {"no parameter has a gradient"}, [&] {
        GradientReducer(std::vector<Parameter>{{"statistics", statistics, {}}},
                        {.session = &session});
    });
}

void discarded_in_a_set(Session& session, Report& report) {
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
            report.expect(
                error && std::string(error->what())
                             .ends_with(text_of("was discarded by rank ", last, ": no such file")),
                "the text");
            report.expect(error && error->ranks() == std::vector<int>{last}, "the rank");
        }
        trainer.backward();
        report.expect(trainer.optimizer.step(), "the next batch of the set");
    }
    expect_usable(session, report);
}

void discarded_rounds(Session& session, Report& report) {
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
            expect_error(report, ErrorCode::discarded,
                         {"allreduce 'p/bundle 1' was discarded by rank 0: why"},
                         [&] { plan.wait(); });
        }
        const auto size = static_cast<float>(session.size());
        report.expect(a == std::vector<float>(2, size) && b == std::vector<float>(2, 1),
                      "what all had made ready, and nothing else");
        plan.ready(1);
        plan.ready(0);
        plan.wait();
        report.expect(b == std::vector<float>(2, size), "the next round");
    }
    if (session.size() == 1) return;
    plan.agree({{"a", "colours", session.rank() == 0 ? "red" : "blue"}});
    plan.ready(0);
    expect_error(report, ErrorCode::mismatch,
                 {"allreduce 'a': colours differ: red on rank 0; blue on rank"},
                 [&] { plan.wait(); });
    plan.agree({});
    plan.ready(0);
    plan.wait();
    expect_error(report, ErrorCode::invalid_argument, {"longer than 65536 bytes"}, [&] {
        plan.agree({{"", std::string(65'537, 'x'), ""}});
    });
}

}  // namespace guozhuang::test
