// Servers that hold the values: synchronous, asynchronous, with a bound, and with backup workers.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Three parameters whose sizes do not divide.
struct Served {
    std::vector<float> a = std::vector<float>(7, 1), b = std::vector<float>(1, 2),
                       c = std::vector<float>(33, 3);
    std::vector<float> gradient_a = a, gradient_b = b, gradient_c = c;
    std::vector<Parameter> parameters() {
        return {{"a", a, gradient_a}, {"b", b, gradient_b}, {"c", c, gradient_c}};
    }
    void set_gradients(float value) {
        for (auto* gradient : {&gradient_a, &gradient_b, &gradient_c})
            std::ranges::fill(*gradient, value);
    }
    std::vector<float> values() const {
        auto all = a;
        all.insert(all.end(), b.begin(), b.end());
        all.insert(all.end(), c.begin(), c.end());
        return all;
    }
};

using ValuesByRank = std::vector<std::vector<float>>;

void raise_to(std::atomic<std::int64_t>& most, std::int64_t value) {
    for (auto now = most.load(); now < value && !most.compare_exchange_weak(now, value);) continue;
}

void dawdle(std::mt19937& random, int most_ms) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(random() % static_cast<unsigned>(most_ms + 1)));
}

}  // namespace

TEST_CASE("servers that wait for all ranks train as an allreduce does") {
    for (const int ranks : {1, 2, 3, 4})
        for (int servers = 1; servers <= ranks; ++servers) {
            CAPTURE(ranks, servers);
            ValuesByRank served(static_cast<std::size_t>(ranks)), reduced = served;
            run_ranks(ranks, [&](Session& session) {
                const auto rank = static_cast<std::size_t>(session.rank());
                Served model, reference;
                ShardedSgd sgd{.learning_rate = 0.5, .momentum = 0.5}, same = sgd;
                ParameterServer server(sgd, model.parameters(), {.servers = servers});
                ShardedOptimizer optimizer(same, reference.parameters());
                for (int step = 0; step < 5; ++step) {
                    // Whole numbers times the number of ranks: their averages are exact.
                    const auto gradient =
                        static_cast<float>(ranks * (session.rank() + 1) * (step + 1));
                    model.set_gradients(gradient);
                    reference.set_gradients(gradient);
                    server.step();
                    optimizer.step();
                }
                server.finish();
                served[rank] = model.values();
                reduced[rank] = reference.values();
                if (server.dropped() + static_cast<std::uint64_t>(server.largest_staleness()) != 0)
                    served[rank].clear();
            });
            for (const auto& values : served) CHECK(values == reduced[0]);
        }
}

TEST_CASE("without waiting, every gradient counts once, whenever it comes") {
    constexpr int steps[] = {9, 4, 7};
    ValuesByRank values(3);
    std::atomic<std::int64_t> stalest = 0;
    run_ranks(3, [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        std::mt19937 random(seed() + unsigned(rank));
        Served model;
        ShardedSgd sgd{.learning_rate = 1};
        ParameterServer server(sgd, model.parameters(), {.servers = 2, .contributions = 1});
        for (int step = 0; step < steps[rank]; ++step) {
            dawdle(random, 3);
            model.set_gradients(static_cast<float>(rank + 1));
            server.step();
        }
        server.finish();
        values[rank] = model.values();
        raise_to(stalest, server.largest_staleness());
    });
    constexpr float sum = 9 * 1 + 4 * 2 + 7 * 3;
    for (const auto& each : values) {
        CHECK(each == values[0]);
        CHECK(each.front() == 1 - sum);
        CHECK(each.back() == 3 - sum);
    }
    CHECK(stalest > 0);
}

TEST_CASE("with a bound no rank is further ahead of the slowest") {
    for (const int bound : {0, 1, 3}) {
        CAPTURE(bound);
        std::atomic<int> steps[3] = {};
        std::atomic<std::int64_t> most = 0;
        run_ranks(3, [&](Session& session) {
            const auto rank = static_cast<std::size_t>(session.rank());
            std::mt19937 random(seed() + unsigned(rank));
            Served model;
            ShardedSgd sgd;
            ParameterServer server(sgd, model.parameters(),
                                   {.contributions = 1, .max_staleness = bound});
            for (int step = 0; step < 20; ++step) {
                dawdle(random, rank == 1 ? 4 : 0);
                server.step();
                ++steps[rank];
                // The slowest rank's step may have come to the server, and not yet back.
                const int ahead =
                    steps[rank] - std::min({steps[0].load(), steps[1].load(), steps[2].load()}) - 1;
                raise_to(most, ahead);
            }
            server.finish();
        });
        CHECK(most <= bound);
    }
}

TEST_CASE("with backup workers the first gradients make the step, and none counts twice") {
    std::atomic<std::uint64_t> dropped = 0;
    std::uint64_t dropped_of_slow = 0;
    ValuesByRank values(3);
    run_ranks(3, [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        Served model;
        ShardedSgd sgd{.learning_rate = 1};
        ParameterServer server(sgd, model.parameters(), {.contributions = 2});
        for (int step = 0; step < 10; ++step) {
            if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            model.set_gradients(1);
            server.step();
        }
        server.finish();
        values[rank] = model.values();
        dropped += server.dropped();
        if (rank == 2) dropped_of_slow = server.dropped();
    });
    for (const auto& each : values) CHECK(each == values[0]);
    CHECK(dropped_of_slow > 0);
    // Each update takes 1 away, whoever has part in it; together they have at most two each.
    const auto updates = static_cast<std::uint64_t>(1 - values[0].front());
    CHECK(updates >= 10);
    CHECK(30 - dropped <= 2 * updates);
    CHECK(30 - dropped >= updates);
}

TEST_CASE("a rank that ends without finish is named, and nobody waits for it") {
    for (const int contributions : {0, 1}) {
        std::vector<std::string> texts(3);
        const auto job = [&](Session& session) {
            Served model;
            ShardedSgd sgd;
            const auto error = error_of([&] {  // perhaps in the first step already
                ParameterServer server(sgd, model.parameters(), {.contributions = contributions});
                server.step();
                if (session.rank() == 1) throw std::runtime_error("no disk");
                for (;;) server.step();
            });
            texts[static_cast<std::size_t>(session.rank())] = error.value().what();
        };
        CHECK_THROWS_WITH(run_ranks(3, job), "no disk");
        for (const auto rank : {0, 2}) {
            CAPTURE(texts[static_cast<std::size_t>(rank)]);
            CHECK(texts[static_cast<std::size_t>(rank)].find("rank 1") != std::string::npos);
        }
    }
}

TEST_CASE("each of several servers takes the first gradients of its own") {
    ValuesByRank values(4);
    std::atomic<std::uint64_t> dropped = 0;
    run_ranks(4, [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        std::mt19937 random(seed() + unsigned(rank));
        Served model;
        ShardedSgd sgd{.learning_rate = 1};
        ParameterServer server(sgd, model.parameters(), {.servers = 3, .contributions = 2});
        model.set_gradients(1);
        for (int step = 0; step < 12; ++step) {
            dawdle(random, 4);
            server.step();
            if (server.largest_staleness() != 0) throw std::runtime_error("it used an old one");
        }
        server.finish();
        values[rank] = model.values();
        dropped += server.dropped();
    });
    for (const auto& each : values) CHECK(each == values[0]);
    for (const float& value : values[0]) {  // each update takes 1 away
        const float begin = &value < &values[0][7] ? 1 : &value == &values[0][7] ? 2 : 3;
        CHECK(begin - value >= 12);
        CHECK(begin - value <= 24);
    }
}

TEST_CASE("a rule that throws ends the training, and all ranks hear why") {
    struct Rule {
        std::size_t moments() const { return 0; }
        void operator()(const Shard<float>&) const { throw std::runtime_error("not finite"); }
    };
    for (const int contributions : {0, 1}) {
        std::vector<std::string> texts(3);
        run_ranks(3, [&](Session& session) {
            Served model;
            Rule rule;
            ParameterServer server(rule, model.parameters(), {.contributions = contributions});
            const auto error = error_of([&] { server.step(); });
            const auto again = error_of([&] { server.step(); });
            texts[static_cast<std::size_t>(session.rank())] = error.value().what();
            if (error->code() != ErrorCode::departed || error->ranks() != std::vector{0} || !again)
                texts.clear();
        });
        for (const auto& text : texts)
            CHECK(text ==
                  "ParameterServer: rank 0 could not update its values: "
                  "std::runtime_error: not finite");
        CHECK(texts.size() == 3);
    }
}

TEST_CASE("a rank that destroys it without finish ends the training, and the job goes on") {
    for (const int leaver : {0, 1})
        for (const int contributions : {0, 1}) {
            CAPTURE(leaver, contributions);
            std::vector<std::string> texts(3);
            run_ranks(3, [&](Session& session) {
                auto& text = texts[static_cast<std::size_t>(session.rank())];
                Served model;
                ShardedSgd sgd;
                std::optional<ParameterServer> server;
                server.emplace(sgd, model.parameters(),
                               ParameterServerOptions{.contributions = contributions});
                if (session.rank() == leaver)
                    server->step();
                else
                    text = error_of([&] {
                               for (;;) server->step();
                           })->what();
                server.reset();
                barrier();
                ParameterServer anew(sgd, model.parameters(), {.tag = 2});
                anew.step();
                anew.finish();
            });
            for (int rank = 0; rank < 3; ++rank)
                if (rank != leaver)
                    CHECK(texts[static_cast<std::size_t>(rank)] ==
                          "ParameterServer: rank " + std::to_string(leaver) +
                              " has ended without finish()");
        }
}

TEST_CASE("two parameter servers at a time, one of them for some ranks") {
    ValuesByRank all(3), some(3);
    run_ranks(3, [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        const auto pair = ProcessSet::create({1, 2});
        Served model, other;
        ShardedSgd sgd{.learning_rate = 1};
        ParameterServer server(sgd, model.parameters(), {.servers = 3});
        std::optional<ParameterServer> of_pair;
        if (rank > 0)
            of_pair.emplace(sgd, other.parameters(),
                            ParameterServerOptions{.servers = 2, .tag = 2, .process_set = pair});
        model.set_gradients(static_cast<float>(rank));
        other.set_gradients(static_cast<float>(rank));
        for (int step = 0; step < 4; ++step) {
            server.step();
            if (of_pair) of_pair->step();
        }
        server.finish();
        if (of_pair) of_pair->finish();
        all[rank] = model.values();
        some[rank] = other.values();
    });
    for (const auto& values : all) CHECK(values.front() == 1 - 4 * 1);
    for (const auto rank : {1, 2})
        CHECK(some[static_cast<std::size_t>(rank)].back() == 3 - 4 * 1.5F);
}

TEST_CASE("ranks that only serve finish at once, and options that differ are named") {
    ValuesByRank values(3);
    std::vector<std::string> texts(2);
    run_ranks(3, [&](Session& session) {
        Served model;
        ShardedSgd sgd{.learning_rate = 1};
        ParameterServer server(sgd, model.parameters());
        if (session.rank() > 0) {
            model.set_gradients(2);
            server.step();
        }
        server.finish();
        values[static_cast<std::size_t>(session.rank())] = model.values();
    });
    for (const auto& each : values) CHECK(each.front() == -1);
    run_ranks(2, [&](Session& session) {
        Served model;
        ShardedSgd sgd;
        const auto error = error_of([&] {
            ParameterServer server(sgd, model.parameters(), {.contributions = session.rank()});
        });
        texts[static_cast<std::size_t>(session.rank())] = error.value().what();
    });
    for (const auto& text : texts)
        CHECK(text.find("values of contributions differ") != std::string::npos);
}

TEST_CASE("parameter servers refuse what they do not take") {
    std::vector<std::string> texts;
    run_ranks(1, [&](Session&) {
        const auto refused = [&](const ParameterServerOptions& options, bool bias = false) {
            Served model;
            ShardedSgd sgd;
            auto parameters = model.parameters();
            if (bias) parameters[1].gradient = {};
            const auto error = error_of([&] { ParameterServer server(sgd, parameters, options); });
            texts.push_back(error ? error->what() : "");
        };
        refused({.servers = 2});
        refused({.contributions = 2});
        refused({.max_staleness = 3});
        refused({}, true);
        Served model;
        ShardedSgd sgd;
        auto tied = model.parameters();
        tied.push_back({"b too", tied[1].value, tied[1].gradient});
        const auto error = error_of([&] { ParameterServer server(sgd, tied); });
        texts.push_back(error ? error->what() : "");
    });
    CHECK(texts[4].find("parameters with the same memory") != std::string::npos);
    CHECK(texts[0].find("servers is 2; it must be 1 to 1") != std::string::npos);
    CHECK(texts[1].find("contributions is 2; it must be 0 to 1") != std::string::npos);
    CHECK(texts[2].find("max_staleness is for contributions == 1") != std::string::npos);
    CHECK(texts[3].find("'b' is not f32") == std::string::npos);
    CHECK(texts[3].find("'b' needs a gradient") != std::string::npos);
}
