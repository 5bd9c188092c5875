#include "support/cases/process_set_cases.hpp"

namespace guozhuang::test {
namespace {

/// Even, odd, without the first, without the last, the ends, the last alone, and everybody: they
/// overlap.
std::vector<std::vector<int>> choices_of_ranks(int size) {
    std::vector<std::vector<int>> choices(6);
    for (int rank = 0; rank < size; ++rank) {
        choices[static_cast<std::size_t>(rank % 2)].push_back(rank);
        if (rank > 0) choices[2].push_back(rank);
        if (rank + 1 < size) choices[3].push_back(rank);
        if (rank == 0 || rank + 1 == size) choices[4].push_back(rank);
        choices[5].push_back(rank);
    }
    choices.push_back({size - 1});
    std::erase_if(choices, [](const auto& ranks) { return ranks.empty(); });
    return choices;
}

std::vector<ProcessSet> create_sets(Session& session) {
    std::vector<ProcessSet> sets;
    for (const auto& ranks : choices_of_ranks(session.size()))
        sets.push_back(ProcessSet::create(ranks, &session));
    return sets;
}

void facts_of_sets(Session& session, Report& report) {
    const auto choices = choices_of_ranks(session.size());
    const auto sets = create_sets(session);
    for (std::size_t i = 0; i < sets.size(); ++i) {
        const auto& ranks = choices[i];
        const auto found = std::ranges::find(ranks, session.rank());
        const bool inside = found != ranks.end();
        report.expect(sets[i].ranks() == ranks && sets[i].size() == static_cast<int>(ranks.size()),
                      "ranks and size");
        report.expect(
            sets[i].contains(session.rank()) == inside && !sets[i].contains(session.size()),
            "contains");
        if (inside)
            report.expect(sets[i].rank() == found - ranks.begin(), "rank");
        else
            expect_error(report, ErrorCode::invalid_argument, {"not in process set"},
                         [&] { return sets[i].rank(); });
    }
    const ProcessSet world(&session), copy = sets[0];
    report.expect(
        world.rank() == session.rank() && world.size() == session.size() && world.contains(0),
        "all ranks");
    report.expect(copy == sets[0] && copy != sets[1 % sets.size()] &&
                      world == ProcessSet(&session) && world != copy,
                  "equality");
    auto backwards = choices[0];
    std::ranges::reverse(backwards);
    report.expect(ProcessSet::create(backwards, &session).ranks() == choices[0], "any order");
}

void errors_in_sets(Session& session, Report& report) {
    const auto bad = ErrorCode::invalid_argument;
    std::vector<float> numbers(6, 1);
    auto one = ProcessSet::create({session.size() - 1}, &session);
    if (!one.contains(session.rank())) {
        const auto text =
            text_of("rank ", session.rank(), " is not in process set ", session.size() - 1);
        expect_error(report, bad, {text}, [&] { allreduce(numbers, {.process_set = one}); });
        expect_error(report, bad, {text},
                     [&] { send(numbers, session.rank(), {.process_set = one}); });
        expect_error(report, bad, {text}, [&] {
            GradientReducer({{"w", numbers, numbers}}, {.process_set = one});
        });
        expect_error(report, bad, {text}, [&] { average_metrics({{"loss", 1}}, one); });
    } else if (session.size() > 1) {
        expect_error(report, bad,
                     {text_of("recv: rank 0 is not in process set ", session.size() - 1)},
                     [&] { recv(numbers, 0, {.process_set = one}); });
        const std::vector<std::int64_t> splits(static_cast<std::size_t>(session.size()), 0);
        expect_error(report, bad, {text_of(session.size(), " splits for 1 ranks")},
                     [&] { all_to_all(numbers, splits, {.process_set = one}); });
    }
    one.remove();
    expect_error(report, bad, {"rank -1 does not exist"},
                 [&] { ProcessSet::create(std::vector{-1}, &session); });
    expect_error(report, bad, {"no set that can be removed"},
                 [&] { ProcessSet(&session).remove(); });
    expect_usable(session, report);
}

/// Errors of a group name ranks of the job, not group ranks.
void mismatches_in_sets(Session& session, Report& report) {
    if (session.size() < 3) return;
    const int last = session.size() - 1;
    const auto set = ProcessSet::create({1, last}, &session);
    const bool odd = session.rank() == last;
    if (set.contains(session.rank())) {
        std::vector<float> few(4), more(5);
        auto& own = odd ? more : few;
        expect_error(report, ErrorCode::mismatch,
                     {"f32 [4] sent by rank 1", text_of("f32 [5] expected by rank ", last)}, [&] {
                         odd ? recv(own, 1, {.process_set = set})
                             : send(own, last, {.process_set = set});
                     });
        LinearModel model{.bias = odd ? 2.0 : 1.0};
        const auto parameters = model.parameters();
        expect_error(report, ErrorCode::mismatch,
                     {text_of("'bias' holds other values on rank ", last, " than on rank 1")},
                     [&] { check_consistent(parameters, set); });
        std::map<std::string, double> metrics{{odd ? "lose" : "loss", 1}};
        expect_error(report, ErrorCode::mismatch,
                     {text_of("keys differ: 'loss' on rank 1; 'lose' on rank ", last)},
                     [&] { average_metrics(metrics, set); });
        few.assign(4, 1);
        allreduce(few, {.name = "x", .process_set = set});
        report.expect(few == std::vector<float>(4, 2), "the next operation in the set");
    }
    expect_usable(session, report);
}

/// An operation that is pending when its set goes: it completes if all have submitted it, else it
/// fails.
void removal_with_pending(Session& session, Report& report) {
    auto set = ProcessSet::create(choices_of_ranks(session.size()).front(), &session);
    Handle lonely;
    int one = 1, two = 2;
    if (set.contains(session.rank())) {
        if (set.rank() == 0) lonely = allreduce_async(one, {.name = "lonely", .process_set = set});
        const auto all = allreduce_async(two, {.name = "all", .process_set = set});
        set.remove();
        all.wait();
        report.expect_equal(two, 2 * set.size(), "what all have submitted");
    } else {
        set.remove();
    }
    if (lonely && set.size() > 1)
        expect_error(report, ErrorCode::departed,
                     {"rank 2 has left process set 0,2", "(it has removed it)",
                      "allreduce 'lonely' waits for it"},
                     [&] { lonely.wait(); });
    else if (lonely)
        lonely.wait();
    expect_usable(session, report);
}

/// Two halves of the ranks train a model each, with their own averages, samples and metrics.
void training_in_sets(Session& session, Report& report) {
    std::vector<ProcessSet> halves;
    for (int colour = 0; colour < std::min(2, session.size()); ++colour)
        halves.push_back(ProcessSet::create(
            choices_of_ranks(session.size())[static_cast<std::size_t>(colour)], &session));
    const auto& half = halves[static_cast<std::size_t>(session.rank() % 2)];
    const auto colour = static_cast<double>(session.rank() % 2);
    LinearModel model{.weights = {session.rank() + 1.0, colour}, .bias = 5};
    broadcast_parameters(model.parameters(), half.ranks().back(), half);
    report.expect(model.weights[0] == half.ranks().back() + 1.0,
                  "the parameters of the half's root");
    check_consistent(model.parameters(), half);
    Sgd sgd{model, 1};
    DistributedOptimizer optimizer(sgd, model.parameters(),
                                   {.name = "the same name", .process_set = half});
    GradientReducer beside({{"b", model.bias, model.bias_gradient}},
                           {.name = "the same name", .session = &session});
    model.weight_gradients = {static_cast<double>(half.rank()), 10.0 * half.rank()};
    model.bias = 0;
    optimizer.step();
    const double mean = (half.size() - 1) / 2.0;
    report.expect(model.weights[0] == half.ranks().back() + 1.0 - mean &&
                      model.weights[1] == colour - 10 * mean,
                  "the half's averages");
    const auto metrics = average_metrics({{"loss", static_cast<double>(session.rank())}}, half);
    double expected = 0;
    for (const int rank : half.ranks()) expected += rank;
    report.expect(std::abs(metrics.at("loss") - expected / half.size()) < 1e-12,
                  "the half's metrics");
    const DistributedSampler sampler(100,
                                     {.shuffle = false, .tail = Tail::uneven, .process_set = half});
    report.expect(sampler.indices()[0] == static_cast<std::size_t>(half.rank()),
                  "the half's samples");
    report.expect(
        scale_learning_rate(0.5, half) == 0.5 * half.size() &&
            steps_per_epoch(100, 1, half) == (99 + static_cast<std::size_t>(half.size())) /
                                                 static_cast<std::size_t>(half.size()),
        "local helpers");
    beside.finish_pass();
}

/// No set of ranks of one host needs messages where they share memory, once they have met; and in
/// an arena none stages.
void sets_share_memory(Session& session, Report& report) {
    const auto sets = create_sets(session);
    GradientArena arena(1 << 20, &session);
    constexpr std::size_t count = 50'000, bytes = count * sizeof(float);
    std::vector<float> apart(count);
    const int host = session.cross_rank();
    std::vector<int> own{host};
    std::vector<int> hosts(static_cast<std::size_t>(session.size()));
    const auto gathered = all_gather(own, {.session = &session});
    std::memcpy(hosts.data(), gathered.bytes.data(), gathered.bytes.size());
    std::pmr::vector<float> inside(count, &arena);
    for (const auto& set : sets) {
        if (!set.contains(session.rank()) || set.size() == 1) continue;
        const auto ranks = set.ranks();
        const bool shares = may_share() && std::ranges::all_of(ranks, [&](int rank) {
                                return hosts[static_cast<std::size_t>(rank)] == host;
                            });
        int first = 1;
        allreduce(first, {.session = &session, .process_set = set});
        for (const auto numbers : {std::span<float>(apart), std::span<float>(inside)}) {
            std::ranges::fill(numbers, 1.0f + static_cast<float>(session.rank()));
            float wanted = 0;
            for (const int rank : ranks) wanted += 1.0f + static_cast<float>(rank);
            const auto before = traffic(&session);
            allreduce(numbers, {.session = &session, .process_set = set});
            const auto after = traffic(&session);
            report.expect(
                std::ranges::all_of(numbers, [&](float number) { return number == wanted; }),
                "another sum");
            // Some ranks send none even where their set has several hosts.
            auto sent = static_cast<int>(after.messages - before.messages);
            allreduce(sent, {.session = &session, .process_set = set});
            report.expect((sent == 0) == shares,
                          "messages where there need be none, or none without");
            if (can_share() && numbers.data() == inside.data())
                report.expect(after.bytes - before.bytes < bytes, "what is in an arena was staged");
        }
    }
}

}  // namespace

void every_operation_in_sets(Session& session, Report& report) {
    const auto sets = create_sets(session);
    for (std::size_t i = 0; i < sets.size(); ++i)
        if (sets[i].contains(session.rank())) RandomOperations(sets[i], 100 + i).run(report, 8);
    expect_usable(session, report);
}

RankCase random_operations_in_sets(std::uint64_t seed, int rounds) {
    return [=](Session& session, Report& report) {
        const auto sets = create_sets(session);
        std::vector<RandomOperations> own{{session, seed}};
        for (const auto& set : sets)
            if (set.contains(session.rank())) own.emplace_back(set, seed);
        for (int round = 0; round < rounds; ++round) {
            std::vector<RandomOperations::Step> steps;
            for (auto& operations : own)
                for (auto& step : operations.draw_round()) steps.push_back(std::move(step));
            own[0].shuffle(steps);
            std::vector<Finish> started;
            for (const auto& step : steps) started.push_back(step());
            own[0].shuffle(started);
            for (const auto& finish : started) finish(report);
        }
    };
}

RankCase sets_in_different_orders(int rounds, std::int64_t count, std::optional<Device> device) {
    return [=](Session& session, Report& report) {
        std::vector<ProcessSet> sets;
        for (int rank = 0; rank < session.size() && session.size() > 1; ++rank)
            sets.push_back(ProcessSet::create({rank, (rank + 1) % session.size()}, &session));
        sets.emplace_back(&session);
        const auto rank = static_cast<std::size_t>(session.rank());
        for (int round = 0; round < rounds; ++round) {
            std::vector<Finish> finishes(sets.size());
            for (std::size_t i = 0; i < sets.size(); ++i) {
                const auto which = (i * (rank % 2 == 0 ? 1 : sets.size() - 1) + rank +
                                    static_cast<std::size_t>(round)) %
                                   sets.size();
                if (!sets[which].contains(session.rank())) continue;
                const auto among = Among(sets[which]).on(device.value_or(usual_device()));
                finishes[which] = start_allreduce(among, "crosswise", {DType::f32, {count}});
            }
            for (std::size_t i = 0; i < sets.size(); ++i)
                if (const auto& finish = finishes[(i + 3 * rank) % sets.size()]) finish(report);
        }
        sets.pop_back();
        for (auto& set : sets) set.remove();
    };
}

std::size_t threads_of_process() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (std::size_t threads = 0; word == "Threads:" && status >> threads) return threads;
    return 0;
}

RankCase sets_come_and_go(int cycles) {
    return [=](Session& session, Report& report) {
        const auto choices = choices_of_ranks(session.size());
        for (int cycle = 0; cycle < cycles; ++cycle) {
            auto set = ProcessSet::create(choices[static_cast<std::size_t>(cycle) % choices.size()],
                                          &session);
            if (set.contains(session.rank())) {
                int one = 1;
                // A message that nobody takes: word of it is on its way when the set is gone.
                Handle lonely;
                if (cycle % 3 == 0 && set.rank() == 0 && set.size() > 1)
                    lonely = send_async(one, set.ranks().back(), {.process_set = set});
                int sum = 1;
                allreduce(sum, {.name = "again", .process_set = set});
                report.expect_equal(sum, set.size(), "the sum of a set that comes and goes");
                set.remove();
                if (lonely)
                    expect_error(report, ErrorCode::departed,
                                 {"has left process set", "never matched"}, [&] { lonely.wait(); });
            } else {
                set.remove();
            }
        }
        expect_usable(session, report);
    };
}

void closing_with_sets(Session& session, Report& report) {
    const auto sets = create_sets(session);
    std::vector<std::vector<float>> numbers(sets.size(), std::vector<float>(1000, 1));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < sets.size(); ++i) {
        const bool submits =
            session.rank() % 2 == 1 || (i + static_cast<std::size_t>(session.rank())) % 3 != 0;
        if (submits && sets[i].contains(session.rank()))
            handles.push_back(
                allreduce_async(numbers[i], {.name = "last", .process_set = sets[i]}));
    }
    if (session.rank() % 2 == 0) session.close();
    for (const auto& handle : handles) {
        const auto error = error_of([&] { handle.wait(); });
        const bool told =
            error && error->code() == ErrorCode::departed &&
            std::string(error->what()).find("(its session has been closed)") != std::string::npos;
        report.expect(!error || told, error ? error->what() : "");
    }
    session.close();
    float number = 0;
    for (const auto& set : sets)
        report.expect(error_of([&] { allreduce(number, {.process_set = set}); }).has_value(),
                      "a set that outlives its session takes nothing");
}

const std::vector<RankCase> all_process_set_cases{facts_of_sets,
                                                  sets_share_memory,
                                                  every_operation_in_sets,
                                                  random_operations_in_sets(1, 3),
                                                  sets_in_different_orders(5, 50'000),
                                                  errors_in_sets,
                                                  mismatches_in_sets,
                                                  removal_with_pending,
                                                  training_in_sets};

}  // namespace guozhuang::test
