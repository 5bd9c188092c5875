#include "support/cases/join_cases.hpp"

namespace guozhuang::test {
namespace {

/// The ranks of a job that still have data in a step, if the first has one step, the second two,
/// and so on.
std::vector<int> active_in(int step, int ranks) {
    std::vector<int> active;
    for (int rank = step; rank < ranks; ++rank) active.push_back(rank);
    return active;
}

/// Adasum has an order among all ranks, in which nothing stands for those that have joined.
std::vector<Tensor> contributions_of(const std::vector<int>& active, const std::string& name,
                                     const Reduce& reduce) {
    std::vector<Tensor> all;
    if (reduce.how.op == ReduceOp::adasum)
        all.resize(static_cast<std::size_t>(active.front()), Tensor(reduce.dtype, reduce.shape));
    for (const int rank : active)
        all.push_back(contribution(name, rank, reduce.dtype, reduce.shape));
    return all;
}

std::vector<Reduce> all_reductions(const Shape& shape) {
    std::vector<Reduce> all;
    for (const auto dtype : all_dtypes)
        for (const auto op :
             {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product})
            if (is_defined(op, dtype)) all.push_back({dtype, shape, {.op = op}});
    for (const auto op : {ReduceOp::min, ReduceOp::max, ReduceOp::product, ReduceOp::average})
        all.push_back({DType::f32, shape, {.op = op, .prescale = -0.5, .postscale = 3}});
    all.push_back({DType::f32, shape, {.op = ReduceOp::adasum}});
    return all;
}

/// Reductions in a step, fused as it comes: what the active ranks have contributed, and an average
/// divides by how many they are.
void reduce_without_some(Session& session, Report& report, const std::string& step,
                         const std::vector<int>& active, Device device) {
    std::vector<std::function<void()>> finishes;
    for (const auto& reduce : all_reductions({7, 3})) {
        const auto name =
            text_of(step, label_of(" allreduce", reduce.dtype, reduce.how.op, reduce.shape),
                    reduce.how.prescale);
        const auto tensor = std::make_shared<Tensor>(
            contribution(name, session.rank(), reduce.dtype, reduce.shape));
        tensor->device = device;
        const auto handle = allreduce_async(tensor->view(), options_of(session, name, reduce.how));
        finishes.push_back([=, &report] {
            handle.wait();
            tensor->fetch();
            report.expect(
                fault_of(*tensor, 0, contributions_of(active, name, reduce), reduce.how).empty(),
                name);
        });
    }
    for (const auto& finish : finishes) finish();
}

void scatter_without_some(Session& session, Report& report, const std::string& step,
                          const std::vector<int>& active) {
    const auto [first, count] = share_of(7, session.rank(), session.size());
    for (const auto& reduce : all_reductions({7, 3})) {
        if (reduce.how.op == ReduceOp::adasum) continue;
        const auto name =
            text_of(step, label_of(" reduce_scatter", reduce.dtype, reduce.how.op, reduce.shape),
                    reduce.how.prescale);
        auto input = contribution(name, session.rank(), reduce.dtype, reduce.shape);
        const auto result = reduce_scatter(input.view(), options_of(session, name, reduce.how));
        Tensor own(reduce.dtype, {count, 3});
        own.bytes = result.bytes;
        const auto fault = fault_of(own, static_cast<std::size_t>(first) * 3,
                                    contributions_of(active, name, reduce), reduce.how);
        report.expect(result.shape == own.shape && fault.empty(), text_of(name, ": ", fault));
    }
}

/// Operations without joined ranks: an all_gather without their rows, a broadcast from a root that
/// has not joined, a barrier and a group.
void move_without_some(Session& session, Report& report, const std::string& step,
                       const std::vector<int>& active) {
    const Among all(session);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(session.size()));
    for (const int rank : active) rows[static_cast<std::size_t>(rank)] = rank + 1;
    start_all_gather(all, step + " all_gather", DType::i32, rows, {2})(report);
    start_broadcast(all, step + " broadcast", DType::f64, {5}, active.back())(report);
    start_barrier(all, step + " barrier")(report);
    auto first = contribution(step + " group/0", session.rank(), DType::f32, {9});
    auto second = contribution(step + " group/1", session.rank(), DType::i64, {2, 2});
    const std::vector<TensorView> views{first.view(), second.view()};
    grouped_allreduce(views, {.name = step + " group"});
    for (auto* tensor : {&first, &second}) {
        const auto name = step + (tensor == &first ? " group/0" : " group/1");
        report.expect(
            fault_of(*tensor, 0, contributions_of(active, name, {tensor->dtype, tensor->shape}), {})
                .empty(),
            name);
    }
}

/// Rank 0 has joined, and cannot be done without.
void joined_and_needed(Session& session, Report& report) {
    if (session.size() == 1) return;
    if (session.rank() > 0) {
        std::vector<float> numbers(static_cast<std::size_t>(session.size()));
        expect_error(report, ErrorCode::departed, {"broadcast 'b': its root, rank 0, has joined"},
                     [&] { broadcast(numbers, 0, {.name = "b"}); });
        expect_error(report, ErrorCode::departed,
                     {"all_to_all 'a': it needs every rank, and rank 0 has joined"},
                     [&] { all_to_all(numbers, {}, {.name = "a"}); });
        expect_error(report, ErrorCode::departed,
                     {"create_process_set", "it needs every rank, and rank 0 has joined"},
                     [&] { ProcessSet::create({1}); });
        std::vector<std::int64_t> shape(1 + static_cast<std::size_t>(session.rank() % 2), 1);
        if (session.size() > 2)
            expect_error(report, ErrorCode::mismatch, {"allreduce 'm': shapes differ"}, [&] {
                allreduce(TensorView(numbers.data(), DType::f32, shape), {.name = "m"});
            });
    }
    join();
    expect_usable(session, report);
}

/// Joining in one set says nothing about others.
void joining_in_sets(Session& session, Report& report) {
    if (session.size() < 3) return;
    const auto low = ProcessSet::create({0, 1}), high = ProcessSet::create({1, 2});
    if (session.rank() < 2) {
        const auto first = session.rank() == 0 ? join_async({.process_set = low}) : JoinHandle();
        int ones = 1;
        if (session.rank() == 1) allreduce(ones, {.name = "x", .process_set = low});
        report.expect_equal(ones, 1, "the sum of one rank in a set of two");
        if (session.rank() == 1)
            report.expect_equal(join({.process_set = low}), 1, "the last in the set");
        if (first) report.expect_equal(first.last_rank(), 1, "the last in the set");
    }
    if (session.rank() == 1 || session.rank() == 2) {
        const auto own = session.rank() == 2 ? join_async({.process_set = high}) : JoinHandle();
        int ones = 1;
        if (session.rank() == 1)
            allreduce(ones, {.name = "x", .op = ReduceOp::average, .process_set = high});
        if (session.rank() == 1)
            report.expect_equal(join({.process_set = high}), 1, "the last in the other set");
        if (own) own.wait();
    }
    expect_usable(session, report);
}

}  // namespace

void uneven_steps(Session& session, Report& report) {
    for (int epoch = 0; epoch < 3; ++epoch) {
        for (int step = 0; step <= session.rank(); ++step) {
            const auto name = text_of("step ", step);
            const auto active = active_in(step, session.size());
            reduce_without_some(session, report, name, active, {});
            scatter_without_some(session, report, name, active);
            move_without_some(session, report, name, active);
            int ones = 1;
            allreduce(ones);
            report.expect_equal(ones, static_cast<int>(active.size()), "an unnamed sum");
        }
        report.expect_equal(join(), session.size() - 1, "the last rank");
        int ones = 1;
        allreduce(ones);
        report.expect_equal(ones, session.size(), "an unnamed sum after a join");
        reduce_without_some(session, report, text_of("together"), active_in(0, session.size()), {});
    }
}

void uneven_steps_on_a_device(Session& session, Report& report) {
    const auto usual = usual_device();
    const auto device = usual.kind == DeviceKind::host ? Device{DeviceKind::cuda, 0} : usual;
    for (int step = 1; step <= session.rank(); ++step)
        reduce_without_some(session, report, text_of("device step ", step),
                            active_in(step, session.size()), device);
    report.expect_equal(join(), session.size() - 1, "the last rank");
    reduce_without_some(session, report, "on the device together", active_in(0, session.size()),
                        device);
}

void submissions_around_a_join(Session& session, Report& report) {
    int early = 1, refused = 1, word = 0;
    const auto before = allreduce_async(early, {.name = "early"});
    if (session.rank() > 0) recv(word, 0);
    const auto joining = join_async();
    if (session.rank() == 0 && session.size() > 1) {
        expect_error(report, ErrorCode::invalid_argument,
                     {"allreduce 'refused'", "this rank has joined"},
                     [&] { allreduce(refused, {.name = "refused"}); });
        expect_error(report, ErrorCode::invalid_argument, {"join", "this rank has joined"},
                     [] { join(); });
    }
    for (int rank = 1; rank < session.size() && session.rank() == 0; ++rank) send(word, rank);
    before.wait();
    report.expect_equal(early, session.size(), "what was submitted before joining");
    const int last = joining.last_rank();
    report.expect(last >= 0 && last < session.size() && last == joining.last_rank(),
                  "the last rank is one, and stays so");
    report.same_everywhere("the last rank", text_of(last));
    allreduce(refused, {.name = "refused"});
    report.expect_equal(refused, session.size(), "what was refused before");
}

void training_with_uneven_batches(Session& session, Report& report) {
    LinearModel model{.weights = {1, 2}, .bias = 3};
    Sgd sgd{model, 1};
    DistributedOptimizer optimizer(sgd, model.parameters());
    double expected = 1;
    for (int batch = 0; batch < session.size(); ++batch) {
        expected -= (batch + session.size() - 1) / 2.0;  // the mean of the active ranks
        if (batch > session.rank()) continue;
        model.weight_gradients = {static_cast<double>(session.rank()), 0};
        optimizer.step();
    }
    const int last = join();
    broadcast_parameters(model.parameters(), last);
    report.expect_equal(last, session.size() - 1, "the last rank");
    report.expect_equal(model.weights[0], expected, "the parameters");
    check_consistent(model.parameters());
    model.weight_gradients = {1, 1};
    optimizer.step();
    report.expect_equal(model.weights[0], expected - 1, "the step after a join");
}

void helpers_without_some(Session& session, Report& report) {
    if (session.rank() > 0) {
        const int self = session.rank(), last = session.size() - 1;
        const auto mean = average_metrics({{"loss", self}});
        report.expect(mean.at("loss") == (1 + last) / 2.0, "the mean of those that have a loss");
        float weight = static_cast<float>(self), gradient = 0;
        const std::vector<Parameter> parameters{{"w", TensorView(weight), TensorView(gradient)}};
        if (last > 1)
            expect_error(report, ErrorCode::mismatch,
                         {text_of("'w' holds other values on rank", last > 2 ? "s 2" : " 2"),
                          "than on rank 1"},
                         [&] { check_consistent(parameters); });
        broadcast_parameters(parameters, last);
        report.expect_equal(weight, static_cast<float>(last), "the last rank's parameter");
        check_consistent(parameters);
        expect_error(report, ErrorCode::departed, {"its root, rank 0, has joined"},
                     [&] { broadcast_parameters(parameters, 0); });
        const auto strings = all_gather_bytes("some");
        report.expect(strings.front().empty() && strings.back() == "some",
                      "no bytes of those that have joined");
    }
    join();
}

const std::vector<RankCase> all_join_cases{
    uneven_steps,    submissions_around_a_join,    joined_and_needed,
    joining_in_sets, training_with_uneven_batches, helpers_without_some};

}  // namespace guozhuang::test
