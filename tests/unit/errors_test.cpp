// Bad input and bad ends, on ranks that are threads.
#include "support/cases/error_cases.hpp"

#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <stdexcept>

#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("bad input is a named error on the ranks concerned, and the next operation succeeds") {
    for (const int ranks : {1, 2, 3, 5, 18})  // 18: deeper than the tree of the ranks is wide
        for (const auto& body : all_error_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("groups whose description is as long as it may be are executed, several at once") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<int> numbers(3 * 500, 1);
              std::vector<Handle> handles;
              for (std::size_t group = 0; group < 3; ++group) {
                  std::vector<TensorView> tensors;
                  for (std::size_t i = 0; i < 500; ++i)
                      tensors.emplace_back(numbers[500 * group + i]);
                  const auto name = text_of(group) + std::string(65'000, 'n');
                  handles.push_back(
                      grouped_allreduce_async(tensors, {.name = name, .session = &session}));
              }
              for (const auto& handle : handles) handle.wait();
              report.expect(numbers == std::vector<int>(3 * 500, 2), "the sums");
              expect_usable(session, report);
          }) == "");
}

TEST_CASE("without a session everything says so") {
    std::vector<float> numbers(2);
    CHECK_FALSE(is_initialized());
    for (const auto& act : std::vector<std::function<void()>>{
             [&] { allreduce(numbers); }, [&] { send(numbers, 0); }, [] { barrier(); },
             [] { rank(); }, [] { size(); }, [] { Session::current(); },
             [] { DistributedSampler(3); }}) {
        const auto error = error_of(act);
        REQUIRE(error);
        CHECK(error->code() == ErrorCode::not_initialised);
        CHECK(std::string(error->what()).find("make a guozhuang::Session") != std::string::npos);
    }
}

TEST_CASE("a closed session takes nothing more") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> numbers(2);
              session.close();
              session.close();
              expect_error(report, ErrorCode::not_initialised, {"closed"},
                           [&] { allreduce(numbers); });
              expect_error(report, ErrorCode::not_initialised, {"closed"}, [&] { session.rank(); });
          }) == "");
}

TEST_CASE("what waits for a rank that has shut down fails by its name") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              if (session.rank() == 1) return;
              std::vector<float> numbers(2), other(2);
              expect_error(report, ErrorCode::departed,
                           {"rank 1 has shut down", "allreduce 'x' waits for it"},
                           [&] { allreduce(numbers, {.name = "x"}); });
              expect_error(report, ErrorCode::departed, {"rank 1 has shut down", "send"},
                           [&] { send(numbers, 1); });
              expect_error(report, ErrorCode::departed, {"rank 1 has shut down", "recv"},
                           [&] { recv(numbers, 1); });
              const auto error = error_of([&] { barrier(); });
              report.expect(error && error->ranks() == std::vector<int>{1}, "names the rank");
              session.rank() == 0 ? send(numbers, 2) : recv(other, 0);  // those who are left go on
          }) == "");
}

TEST_CASE("what a rank submitted before it shut down is still done") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              const auto number = std::make_shared<int>(1);
              const auto handle =
                  allreduce_async(*number, {.name = "last words", .keep_alive = number});
              if (session.rank() == 1) return;
              handle.wait();
              report.expect_equal(*number, 3, "the sum");
          }) == "");
}

TEST_CASE("an exception of one rank ends the others and is the one that is thrown") {
    const LogCapture log;
    for (const int way : {0, 1, 2, 3}) {
        std::vector<std::string> ends(3), texts(3);
        const auto job = [&](Session& session) {
            std::vector<float> numbers(2);
            const auto rank = static_cast<std::size_t>(session.rank());
            if (rank == 1) {
                barrier();
                throw std::runtime_error("mine");
            }
            try {
                barrier();
                if (way == 0) allreduce(numbers);
                if (way == 1) recv(numbers, 1);
                if (way == 2) barrier_async().wait();
                if (way == 3) session.close();
            } catch (const Error& error) {
                ends[rank] = name_of(error.code());
                texts[rank] = error.what();
                throw;
            }
            ends[rank] = "nothing was thrown";
        };
        INFO("way " << way);
        CHECK_THROWS_WITH(run_ranks(3, job), "mine");
        for (const std::size_t rank : {0u, 2u}) {
            // Closing needs nobody.
            CHECK(ends[rank] == (way == 3 ? "nothing was thrown" : "departed"));
            CHECK((way == 3 ||
                   texts[rank].starts_with("rank 1 has shut down (std::runtime_error: mine)")));
        }
    }
    CHECK(log.with("nobody waited").empty());  // each of these was told
}

TEST_CASE(
    "an error that all ranks get is not lost on a slow rank when another quits because of it") {
    for (int i = 0; i < 100; ++i) {
        std::vector<std::string> ends(3);
        const auto job = [&](Session& session) {
            std::vector<float> numbers(session.rank() == 1 ? 3 : 2);
            try {
                allreduce(numbers, {.name = "x"});
            } catch (const Error& error) {
                ends[static_cast<std::size_t>(session.rank())] = name_of(error.code());
                throw;
            }
        };
        CHECK_THROWS_AS(run_ranks(3, job), Error);
        CHECK(ends == std::vector<std::string>(3, "mismatch"));
    }
}

TEST_CASE("ranks that leave one because of the other name the first") {
    const bool further = GENERATE(false, true);  // rank 0 leaves, or rank 1 because of rank 0, too
    const bool by_message = GENERATE(false, true);  // how the last one hears of it
    std::string text;
    std::vector<int> blamed;
    const auto job = [&](Session& session) {
        float number = 0;
        switch (session.rank()) {
            case 0: return recv(number, 3);
            case 1: return further ? recv(number, 0) : barrier();
            case 3: return session.close();
        }
        try {
            if (by_message)
                recv(number, further ? 1 : 0);
            else
                allreduce(number, {.name = "late"});
        } catch (const Error& error) {
            text = error.what();
            blamed = error.ranks();
        }
    };
    CHECK_THROWS_AS(run_ranks(4, job), Error);
    INFO(text);
    REQUIRE(!blamed.empty());
    CHECK(blamed.front() == 3);
    CHECK(text.find("rank 3 has shut down") != std::string::npos);
}

TEST_CASE("a rank that closes its session because of another names that") {
    std::string text;
    std::vector<int> blamed;
    run_ranks(4, [&](Session& session) {
        float number = 0;
        if (session.rank() == 3) return session.close();
        if (session.rank() != 2) {
            (void)error_of([&] { recv(number, 3); });
            return session.close();
        }
        const auto error = error_of([&] { allreduce(number, {.name = "late"}); });
        if (!error) return;
        text = error->what();
        blamed = error->ranks();
    });
    INFO(text);
    REQUIRE(!blamed.empty());
    CHECK(blamed.front() == 3);
    CHECK(text.find("rank 3 has shut down") != std::string::npos);
}

TEST_CASE("a handle that outlives an aborted session has failed") {
    const LogCapture log;
    std::vector<float> numbers(2);
    Handle handle;
    CHECK_THROWS_WITH(run_ranks(2,
                                [&](Session& session) {
                                    if (session.rank() == 0) handle = allreduce_async(numbers);
                                    if (session.rank() == 0) throw std::runtime_error("mine");
                                    session.close();
                                }),
                      "mine");
    REQUIRE(handle.done());
    CHECK_THROWS_AS(handle.wait(), Error);
}

TEST_CASE("a failure that nobody waited for is logged once, also if the call waited first") {
    const auto wait_first = GENERATE(0s, 20s);
    const LogCapture log;
    run_ranks(2, [&](Session& session) {
        static std::vector<float> numbers(2);
        std::vector<float> other(3);
        if (session.rank() == 0) {
            detail::wait_first(wait_first);
            allreduce_async(numbers, {.name = "forgotten"});
            barrier();
        } else {
            error_of([&] { allreduce(other, {.name = "forgotten"}); });
            barrier();
        }
    });
    CHECK(log.with("nobody waited for an operation that failed: allreduce 'forgotten'").size() ==
          1);
}

TEST_CASE("of operations that an exception leaves behind nothing is said besides") {
    const LogCapture log;
    static std::vector<float> numbers(2);
    CHECK_THROWS_WITH(run_ranks(2,
                                [](Session& session) {
                                    if (session.rank() == 0) {
                                        const auto pending =
                                            allreduce_async(numbers, {.name = "pending"});
                                        throw std::runtime_error("mine");
                                    }
                                    error_of([] { barrier(); });
                                }),
                      "mine");
    CHECK(log.with("nobody waited").empty());
}

TEST_CASE("run_ranks needs a rank") {
    CHECK_THROWS_AS(run_ranks(0, [](Session&) {}), Error);
}
