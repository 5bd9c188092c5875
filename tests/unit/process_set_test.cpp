// Process sets, on ranks that are threads.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "runtime/process_sets.hpp"
#include "support/cases/process_set_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/file_size_limit.hpp"
#include "support/runner/open_files.hpp"
#include "support/runner/sanitizer.hpp"
#include "wire/inproc/inproc_transport.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("process sets on any number of ranks") {
    for (const int ranks : rank_counts({1, 2, 3, 5}))
        for (const auto& body : all_process_set_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("sets in use while sessions close") {
    for (const int ranks : rank_counts({1, 2, 3, 5}))
        CHECK(problems_among(ranks, closing_with_sets) == "");
}

TEST_CASE("ranks that take turns make no sets") {
    CHECK(problems_among(2,
                         [](Session&, Report& report) {
                             expect_error(report, ErrorCode::unavailable,
                                          {"ranks that take turns have none"}, [] {
                                              ProcessSet::create({0, 1});
                                          });
                         },
                         {.turns = 1}) == "");
}

TEST_CASE("the end of a job ends what is pending in all its sets") {
    int told = 0;
    const auto body = [&](Session& session) {
        const auto first = ProcessSet::create({0, 1}), second = ProcessSet::create({0, 2});
        int word = 0;
        if (session.rank() == 1) {
            recv(word, 0);
            throw std::runtime_error("mine");
        }
        if (session.rank() == 2) return;
        std::vector<float> numbers(10);
        const auto world = allreduce_async(numbers, {.name = "in the world"});
        const auto left = allreduce_async(numbers, {.process_set = first}),
                   right = allreduce_async(numbers, {.process_set = second});
        const auto sent = send_async(word, 1);
        for (const auto& handle : {left, right, world}) {
            const auto error = error_of([&] { handle.wait(); });
            if (error &&
                (error->code() == ErrorCode::aborted || error->code() == ErrorCode::departed))
                ++told;
        }
        barrier({.process_set = first});
    };
    CHECK_THROWS_WITH(run_ranks(3, body), "mine");
    CHECK(told == 3);
}

TEST_CASE("many sets come and go, and leave nothing behind") {
    const auto threads = threads_of_process();
    const auto files = open_files();
    for (const int ranks : {1, 3}) CHECK(problems_among(ranks, sets_come_and_go(200)) == "");
    CHECK(threads_of_process() == threads);
    CHECK(open_files() == files);
}

TEST_CASE("sets that do nothing are not woken for what others do") {
    constexpr int sets = 50, operations = 100;
    // All 102 coordinators stay asleep but the world's, the first set's, and those that share its
    // bits.
    constexpr std::size_t quiet = 80;
    const auto sleeps_of_coordinators = [] {
        std::map<std::string, long> sleeps;  // by thread
        for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
            std::ifstream status(thread.path() / "status");
            std::string word, name;
            status >> word >> name;
            if (name != "gz-coordinator") continue;
            while (status >> word && word != "voluntary_ctxt_switches:") continue;
            status >> sleeps[thread.path()];
        }
        return sleeps;
    };
    std::vector<long> sleeps;
    run_ranks(2, [&](Session& session) {
        std::vector<ProcessSet> all;
        for (int i = 0; i < sets; ++i) all.push_back(ProcessSet::create({0, 1}, &session));
        barrier();
        std::map<std::string, long> before;
        if (session.rank() == 0) before = sleeps_of_coordinators();
        float number = 0;
        for (int i = 0; i < operations; ++i) allreduce_async(number).wait();
        for (int i = 0; i < operations; ++i)
            allreduce_async(number, {.process_set = all.front()}).wait();
        if (session.rank() == 0)
            for (const auto& [thread, count] : sleeps_of_coordinators())
                sleeps.push_back(count - before[thread]);
        barrier();
    });
    REQUIRE(sleeps.size() == 2 * sets + 2);
    std::ranges::sort(sleeps);
    long quietest = 0;
    for (const auto each : std::span(sleeps).first(quiet)) quietest += each;
    INFO("the 80 quietest coordinators have gone to sleep so often");
    // Some may have been on their way to their first sleep.
    CHECK(quietest <= 3 * static_cast<long>(quiet));
}

TEST_CASE("a set whose ranks can have no memory to stage in uses messages, and says so once") {
    std::vector<std::string> warnings;
    set_log_callback([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
    CHECK(problems_among(3, [&](Session& session, Report& report) {
              const auto set = ProcessSet::create({0, 2}, &session);
              barrier({.session = &session});
              std::optional<FileSizeLimit> little;  // of all ranks, which are threads
              if (session.rank() == 1) little.emplace(1000);
              barrier({.session = &session});
              std::vector<float> numbers(100'000, 1.0f + static_cast<float>(session.rank()));
              for (int turn = 0; turn < 2 && session.rank() != 1; ++turn)
                  allreduce(numbers, {.session = &session, .process_set = set});
              report.expect(numbers.back() == (session.rank() == 1 ? 2.0f : 8.0f), "another sum");
              barrier({.session = &session});
          }) == "");
    set_log_callback(nullptr);
    CHECK(warnings == std::vector<std::string>{"process set 0,2: no memory to stage in (ftruncate: "
                                               "File too large): its data travels as messages"});
}

TEST_CASE("there can be 4094 sets, and a removed one makes room") {
    const auto resources = std::make_shared<RankResources>();
    resources->transport = wire::InprocHub(2).transport(0);
    ProcessSets sets(resources);
    std::set<std::uint64_t> epochs;
    std::vector<SetId> ids;
    while (const auto opened = sets.open({1})) {
        CHECK_FALSE(opened->set_runtime);
        ids.push_back(opened->id);
        epochs.insert(opened->id.epoch);
    }
    REQUIRE(ids.size() == 4094);
    CHECK(ids.front().context == 1);
    CHECK(ids.back().context == 0xffe);
    sets.release(ids[17]);
    const auto again = sets.open({1});
    REQUIRE(again);
    CHECK(again->id.context == ids[17].context);
    CHECK(epochs.insert(again->id.epoch).second);
    CHECK_FALSE(sets.open({1}));
}

TEST_CASE("a set of one job is not for another's") {
    CHECK(problems_among(1, [](Session& session, Report& report) {
              const auto set = ProcessSet::create({0}, &session);
              run_ranks(1, [&](Session& other) {
                  int one = 1;
                  expect_error(report, ErrorCode::invalid_argument,
                               {"process set 0 belongs to another session"},
                               [&] { allreduce(one, {.session = &other, .process_set = set}); });
              });
          }) == "");
}

TEST_CASE("many more random operations in sets, in many orders", "[.slow]") {
    for (std::uint64_t seed = 0; seed < 30; ++seed)
        CHECK(problems_among(4, random_operations_in_sets(seed, 5)) == "");
}
