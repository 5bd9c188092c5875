#include "support/cases/training_cases.hpp"

namespace guozhuang::test {

std::vector<double> train(Session& session, std::span<const Sample> batch, int passes, int steps,
                          double rate) {
    LinearModel model;
    Sgd sgd{model, rate};
    DistributedOptimizer optimizer(sgd, model.parameters(),
                                   {.backward_passes_per_step = passes, .session = &session});
    const auto share = batch.size() / static_cast<std::size_t>(session.size());
    const auto own = batch.subspan(share * static_cast<std::size_t>(session.rank()), share);
    const auto pass = share / static_cast<std::size_t>(passes);
    while (sgd.steps < steps) {
        model.zero_gradients();
        bool stepped = false;
        for (std::size_t first = 0; first < share; first += pass) {
            model.backward(own.subspan(first, pass), passes);
            stepped = optimizer.step();
        }
        if (!stepped) break;
    }
    return model.values();
}

std::vector<double> train_alone(std::span<const Sample> batch, int steps, double rate) {
    LinearModel model;
    Sgd sgd{model, rate};
    while (sgd.steps < steps) {
        model.zero_gradients();
        model.backward(batch);
        sgd.step();
    }
    return model.values();
}

std::vector<Sample> random_samples(std::size_t count) {
    Numbers numbers(count);
    std::vector<Sample> samples(count);
    for (auto& [x1, x2, y] : samples) {
        x1 = static_cast<double>(numbers.below(64)) / 8;
        x2 = static_cast<double>(numbers.below(64)) / 8;
        y = 2 * x1 - 3 * x2 + 1;
    }
    return samples;
}

bool are_close(const std::vector<double>& a, const std::vector<double>& b, double relative) {
    for (std::size_t i = 0; i < a.size(); ++i)
        if (std::abs(a[i] - b[i]) > relative * std::max(std::abs(a[i]), std::abs(b[i])))
            return false;
    return a.size() == b.size();
}

void same_batch_same_model(Session& session, Report& report) {
    const auto batch = random_samples(64 * static_cast<std::size_t>(session.size()));
    const auto expected = train_alone(batch, 50, 4e-5);
    report.expect(are_close(train(session, batch, 1, 50, 4e-5), expected, 1e-12), "one pass");
    report.expect(are_close(train(session, batch, 4, 50, 4e-5), expected, 1e-12),
                  "four passes, the loss divided by 4");
}

void hooks_in_any_order(Session& session, Report& report) {
    constexpr std::size_t count = 9;
    std::vector<std::vector<float>> values(count), gradients(count);
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < count; ++i) {
        values[i].assign(100 * i, 0);
        gradients[i].assign(100 * i, 0);
        parameters.push_back({text_of("p", i), values[i], gradients[i]});
    }
    for (const std::size_t bundle_bytes :
         {std::size_t{0}, std::size_t{1500}, std::size_t{1} << 20}) {
        GradientReducer reducer(parameters, {.name = text_of("any order ", bundle_bytes),
                                             .gradient_scale = 2,
                                             .bundle_bytes = bundle_bytes,
                                             .first_bundle_bytes = bundle_bytes / 2,
                                             .session = &session});
        const GradientHook hook(reducer);
        for (int step = 0; step < 3; ++step) {
            for (std::size_t i = 0; i < count; ++i)
                gradients[i].assign(100 * i,
                                    static_cast<float>(session.rank()) + static_cast<float>(i));
            for (std::size_t i = 0; i < count; ++i) {
                const auto parameter =
                    (static_cast<std::size_t>(session.rank()) * 4 + i * 2) % count;
                i % 2 == 0 ? hook(parameter) : hook(parameters[parameter].name);
            }
            report.expect(reducer.finish_pass(), "a pass that reduces");
            const auto mean = static_cast<float>(session.size() - 1) / 2;
            for (std::size_t i = 0; i < count; ++i)
                report.expect(
                    gradients[i] == std::vector<float>(100 * i, 2 * (mean + static_cast<float>(i))),
                    text_of("average of p", i));
        }
    }
}

void optimizers_side_by_side(Session& session, Report& report) {
    LinearModel first, second;
    Sgd first_sgd{first, 1}, second_sgd{second, 1};
    DistributedOptimizer a(first_sgd, first.parameters(), {.session = &session});
    DistributedOptimizer b(second_sgd, second.parameters(), {.session = &session});
    const auto mark_all = [](auto& optimizer) {
        const auto hook = optimizer.on_gradient();
        hook("bias");
        hook("weights");
    };
    first.bias_gradient = session.rank();
    second.bias_gradient = 10.0 * session.rank();
    session.rank() % 2 == 0 ? mark_all(a) : mark_all(b);
    session.rank() % 2 == 0 ? mark_all(b) : mark_all(a);
    a.step();
    b.step();
    const double mean = (session.size() - 1) / 2.0;
    report.expect(first.bias == -mean && second.bias == -10 * mean, "each its own average");

    const auto named = [&](const char* name) {
        return OptimizerOptions{.name = name, .session = &session};
    };
    auto one = std::make_unique<GradientReducer>(first.parameters(), named("critic"));
    expect_error(report, ErrorCode::duplicate_name,
                 {"Plan 'critic': this rank has another plan", "(name)"},
                 [&] { GradientReducer(second.parameters(), named("critic")); });
    one.reset();
    GradientReducer(second.parameters(), named("critic")).finish_pass();  // the name is free again
    expect_usable(session, report);
}

void parameters_from_any_root(Session& session, Report& report) {
    for (int root = 0; root < session.size(); ++root) {
        LinearModel model{.weights = {session.rank() + 1.0, 2}, .bias = 10.0 * session.rank()};
        broadcast_parameters(model.parameters(), root, &session);
        report.expect(model.values() == std::vector<double>{root + 1.0, 2, 10.0 * root},
                      text_of("parameters of root ", root));
        check_consistent(model.parameters(), &session);
    }
    LinearModel model;
    expect_error(report, ErrorCode::invalid_argument, {"root 99 is not a rank"},
                 [&] { broadcast_parameters(model.parameters(), 99, &session); });
}

void training_with_adasum(Session& session, Report& report) {
    const std::vector<Shape> shapes{{3, 5}, {}, {70}, {0}, {1}};
    std::vector<Tensor> values, gradients;
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        values.emplace_back(DType::f32, shapes[i]);
        gradients.push_back(
            contribution(text_of("gradient ", i), session.rank(), DType::f32, shapes[i]));
    }
    for (std::size_t i = 0; i < shapes.size(); ++i)
        parameters.push_back({text_of("p", i), values[i].view(), gradients[i].view()});
    int steps = 0;
    struct Stepper {
        int& count;
        void step() { ++count; }
    } stepper{steps};
    DistributedOptimizer optimizer(
        stepper, parameters, {.op = ReduceOp::adasum, .gradient_scale = 0.5, .session = &session});
    optimizer.step();
    report.expect(steps == 1, "stepped");
    for (std::size_t i = 0; i < shapes.size(); ++i)
        check_allreduced(session, report, text_of("gradient ", i), gradients[i],
                         {.op = ReduceOp::adasum, .postscale = 0.5});
}

void byte_strings(Session& session, Report& report) {
    const auto bytes_of = [](int rank) {
        const auto number = static_cast<std::size_t>(rank);
        return std::string(number * 4001, '\0') + std::string(number % 3, '\xff');
    };
    for (int root = 0; root < session.size(); ++root) {
        std::string bytes = session.rank() == root ? bytes_of(root) : std::string(7, 'x');
        broadcast_bytes(bytes, root, &session);
        report.expect(bytes == bytes_of(root), text_of("bytes of root ", root));
    }
    const auto gathered = all_gather_bytes(bytes_of(session.rank()), &session);
    report.expect(gathered.size() == static_cast<std::size_t>(session.size()),
                  "a string of each rank");
    for (std::size_t rank = 0; rank < gathered.size(); ++rank)
        report.expect(gathered[rank] == bytes_of(static_cast<int>(rank)),
                      text_of("bytes of rank ", rank));
}

void optimizer_state(Session& session, Report& report) {
    for (int root = 0; root < session.size(); ++root) {
        const auto state_of = [](int rank) {
            return Momentum::after((std::size_t{1} << 40) + static_cast<std::size_t>(rank));
        };
        auto momentum = session.rank() == root ? state_of(root) : Momentum();
        broadcast_optimizer_state(momentum, root, &session);
        report.expect(momentum == state_of(root), text_of("state of root ", root));
    }
    Momentum twice;
    twice.velocities = {{"w", {1}}, {"w", {2}}};
    expect_error(report, ErrorCode::invalid_argument,
                 {"two parts of the state are called 'velocity/w'"},
                 [&] { broadcast_optimizer_state(twice, 0, &session); });
    expect_usable(session, report);
}

void unlike_optimizer_states(Session& session, Report& report) {
    if (session.size() < 2) return;
    const auto check = [&](Momentum other, const std::string& a, const std::string& b) {
        auto usual = Momentum::after(3);
        const auto unchanged = other;
        expect_mismatch(
            session, report, "broadcast_optimizer_state: states differ: " + sides(session, a, b),
            [&] { broadcast_optimizer_state(usual, 0, &session); },
            [&] { broadcast_optimizer_state(other, 0, &session); });
        report.expect(other == unchanged, "a state that does not match is not changed");
    };
    Momentum longer, lazy, more;
    longer.velocities[0].second.resize(4);
    lazy.velocities.clear();
    more.velocities.push_back({"z", {1}});
    check(longer, "'velocity/w f32 [3]'", "'velocity/w f32 [4]'");
    check(lazy, "'velocity/b f32 [1]', 'velocity/w f32 [3]'", "none");
    check(more, "none", "'velocity/z f32 [1]'");
}

void consistency(Session& session, Report& report) {
    LinearModel model{.weights = {1, 2}, .bias = 3};
    check_consistent(model.parameters(), &session);
    if (session.size() < 2) return;
    const int last = session.size() - 1;
    if (session.rank() == last) model.bias = 3.0000000000000004;
    expect_error(report, ErrorCode::mismatch,
                 {text_of("'bias' holds other values on rank ", last, " than on rank 0")},
                 [&] { check_consistent(model.parameters(), &session); });
    if (session.rank() == last) model.weights[1] = -2;
    const auto error = error_of([&] { check_consistent(model.parameters(), &session); });
    report.expect(error && error->tensor() == "weights" && error->ranks() == std::vector<int>{last},
                  "names the first tensor that differs, and the rank");
    auto parameters = model.parameters();
    if (session.rank() == last) parameters.pop_back();
    expect_error(report, ErrorCode::mismatch,
                 {"check_consistent: parameters differ: " + sides(session, "'bias'", "none")},
                 [&] { check_consistent(parameters, &session); });
    parameters = model.parameters();
    if (session.rank() == last) parameters[0].name = "weight";
    expect_error(
        report, ErrorCode::mismatch,
        {"check_consistent: parameters differ: " + sides(session, "'weights'", "'weight'")},
        [&] { check_consistent(parameters, &session); });
    parameters = model.parameters();
    if (session.rank() == last) std::swap(parameters[0], parameters[1]);
    expect_error(report, ErrorCode::mismatch, {"another place, dtype or shape"},
                 [&] { check_consistent(parameters, &session); });
    expect_usable(session, report);
}

void metrics(Session& session, Report& report) {
    const auto averaged =
        average_metrics({{"loss", session.rank() + 0.5}, {"accuracy", 0.25}}, &session);
    report.expect(averaged.at("loss") == (session.size() - 1) / 2.0 + 0.5 &&
                      averaged.at("accuracy") == 0.25 && averaged.size() == 2,
                  "averages");
    report.expect(average_metrics({}, &session).empty(), "no metrics");
    if (session.size() < 2) return;
    const std::map<std::string, double> usual = {{"accuracy", 1}, {"loss", 2}},
                                        misspelt = {{"accuracy", 1}, {"lose", 2}}, none;
    const auto text = "average_metrics: keys differ: " + sides(session, "'loss'", "'lose'");
    expect_mismatch(
        session, report, text, [&] { average_metrics(usual, &session); },
        [&] { average_metrics(misspelt, &session); });
    expect_mismatch(
        session, report,
        "average_metrics: keys differ: " + sides(session, "'accuracy', 'loss'", "none"),
        [&] { average_metrics(usual, &session); }, [&] { average_metrics(none, &session); });
}

void different_parameters(Session& session, Report& report) {
    if (session.size() < 2) return;
    std::vector<float> a(2), b(2), gradient_of_a(2), gradient_of_b(2);
    std::vector<Parameter> usual{{"a", a, gradient_of_a}, {"b", b, gradient_of_b}},
        misspelt = usual, fewer = usual;
    misspelt[1].name = "B";
    fewer.erase(fewer.begin());
    const auto step = [&](const std::vector<Parameter>& parameters) {
        return [&] {
            GradientReducer(parameters, {.name = "net", .session = &session}).finish_pass();
        };
    };
    const std::string text = "allreduce 'net/bundle 0': tensors differ: ";
    expect_mismatch(session, report, text + sides(session, "'b'", "'B'"), step(usual),
                    step(misspelt));
    expect_mismatch(session, report, text + sides(session, "'a'", "none"), step(usual),
                    step(fewer));

    const auto cast = [&](const std::vector<Parameter>& parameters) {
        return [&] { broadcast_parameters(parameters, 0, &session); };
    };
    const std::string casting = "broadcast_parameters: parameters differ: ";
    expect_mismatch(session, report, casting + sides(session, "'b'", "'B'"), cast(usual),
                    cast(misspelt));
    expect_mismatch(session, report, casting + sides(session, "'a'", "none"), cast(usual),
                    cast(fewer));
    expect_mismatch(session, report, casting + sides(session, "'a', 'b'", "none"), cast(usual),
                    cast({}));
    misspelt[1].name = "a";
    expect_error(report, ErrorCode::invalid_argument,
                 {"broadcast_parameters: two parameters are called 'a'"}, cast(misspelt));
    expect_error(report, ErrorCode::invalid_argument,
                 {"check_consistent: two parameters are called 'a'"},
                 [&] { check_consistent(misspelt, &session); });
    std::vector<Parameter> reversed(usual.rbegin(), usual.rend());
    broadcast_parameters(session.rank() == 0 ? usual : reversed, 0, &session);
}

void failed_step(Session& session, Report& report) {
    if (session.size() < 2) return;
    std::vector<float> value(4), gradient(4, 1), longer(5), longer_gradient(5, 1);
    const bool odd = session.rank() == session.size() - 1;
    const auto options = [&] {
        return OptimizerOptions{.name = "shared name", .session = &session};
    };
    {
        GradientReducer reducer({{"w", odd ? longer : value, odd ? longer_gradient : gradient}},
                                options());
        expect_error(report, ErrorCode::mismatch, {"'w': shapes differ"},
                     [&] { reducer.finish_pass(); });
        expect_error(report, ErrorCode::mismatch, {"'w': shapes differ"}, [&] {
            reducer.mark("w");
            reducer.finish_pass();
        });
        expect_error(report, ErrorCode::invalid_argument, {"was it called twice?"},
                     [&] { reducer.finish_pass(); });
    }
    GradientReducer reducer({{"w", value, gradient}}, options());
    gradient.assign(4, static_cast<float>(session.size()));
    reducer.finish_pass();
    report.expect(gradient == std::vector<float>(4, static_cast<float>(session.size())),
                  "the step after it");
}

void gradients_that_some_ranks_use(Session& session, Report& report) {
    std::vector<float> value(1), first(1), second(1), uses(3);
    bool fails = false;
    int taken = 0;
    GradientReducer reducer(
        {{"a", value, first}, {"b", value, second}, {"rows", value, {}}},
        {.bundle_bytes = 1, .first_bundle_bytes = 1, .session = &session, .uses = uses},
        {.closing =
             [&] {
                 if (fails) throw Error(ErrorCode::timeout, "not now\nnor later");
             },
         .reduced = [&] { ++taken; }});
    const bool is_last = session.rank() == session.size() - 1;
    const auto reduce = [&] {
        first[0] = second[0] = static_cast<float>(session.rank());
        reducer.mark("a");
        if (is_last) reducer.mark("rows");
        report.expect(reducer.is_used(2) == is_last, "this rank has used what it has marked");
        reducer.close();
        reducer.finish_pass([&] {
            report.expect(reducer.is_used(0) && !reducer.is_used(1) && reducer.is_used(2), "uses");
        });
    };
    reduce();
    report.expect_equal(second[0], static_cast<float>(session.size() - 1) / 2, "sent as it is");
    fails = is_last;
    is_last ? expect_error(report, ErrorCode::timeout, {"not now\nnor later"}, reduce)
            : expect_error(report, ErrorCode::discarded, {"not now"}, reduce);
    fails = false;
    reduce();
    report.expect_equal(taken, 2, "batches that were reduced");
}

}  // namespace guozhuang::test
