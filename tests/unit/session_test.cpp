// A rank's membership of its job, on ranks that are threads.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// The code of the Error that the act throws, if it does.
std::optional<ErrorCode> code_of(const std::function<void()>& act) {
    const auto error = error_of(act);
    return error ? std::optional(error->code()) : std::nullopt;
}

/// The value behind `key` in the system's status of a thread of this process.
std::string status_of(const std::filesystem::path& task, const std::string& key) {
    std::ifstream file(task / "status");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(key + ":\t")) return line.substr(key.size() + 2);
    return {};
}

bool blocks(unsigned long long mask, int signal) {
    return (mask >> (signal - 1) & 1) != 0;
}

/// The mask of a thread of this process. The C library blocks all signals of a thread while it
/// starts it, so a fault that is blocked is looked at again.
unsigned long long signals_blocked_by(const std::filesystem::path& task) {
    for (int again = 0;; ++again) {
        const auto mask = std::stoull(status_of(task, "SigBlk"), nullptr, 16);
        if (!blocks(mask, SIGSEGV) || again == 1000) return mask;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

}  // namespace

TEST_CASE("threads of the library take no signals that a program may wait for") {
    CHECK(problems_among(2, [](Session&, Report& report) {
              barrier();
              int threads = 0;
              for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
                  if (!status_of(task, "Name").starts_with("gz-")) continue;
                  ++threads;
                  const auto blocked = signals_blocked_by(task);
                  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM})
                      report.expect(blocks(blocked, signal), std::to_string(signal));
                  report.expect(!blocks(blocked, SIGSEGV), "a fault is none of them");
              }
              report.expect(threads >= 2, "there are threads to look at");
              barrier();
          }) == "");
}

TEST_CASE("ranks that are threads are one host") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              report.expect(&Session::current() == &session && is_initialized(),
                            "the session of the thread");
              report.expect(rank() == session.rank() && size() == 3, "rank and size");
              report.expect(local_rank() == rank() && local_size() == 3, "local rank and size");
              report.expect(cross_rank() == 0 && cross_size() == 1 && is_homogeneous(), "one host");
          }) == "");
    CHECK_FALSE(is_initialized());
}

TEST_CASE("a session that a rank makes for itself is its thread's, and closing it ends nothing") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              {
                  Session own;
                  report.expect(own.rank() == session.rank() && own.size() == 3,
                                "the same rank of the same job");
                  expect_usable(own, report);
                  own.close();
                  expect_error(report, ErrorCode::not_initialised, {"closed"}, [&] { own.rank(); });
                  Session last;  // ends here
              }
              init();
              report.expect_equal(rank(), session.rank(), "rank after init()");
              shutdown();
              const auto communicator = MpiCommunicator::of(1);
              expect_error(report, ErrorCode::invalid_argument, {"there is one already"},
                           [&] { Session(nullptr, nullptr, {.mpi_communicator = communicator}); });
              expect_usable(session, report);
          }) == "");
    CHECK_FALSE(is_initialized());
}

TEST_CASE("another thread of a rank names its session") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::jthread([&] {
                  report.expect(error_of([] { Session::current(); }).has_value(),
                                "a thread has no session by itself");
                  int one = 1;
                  allreduce(one, {.name = "elsewhere", .session = &session});
                  report.expect_equal(one, 2, "the sum");
              });
          }) == "");
}

TEST_CASE("a session that is moved goes on") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              Session moved(std::move(session));
              report.expect(moved.size() == 2, "the new one");
              // The moved-from session answers with an error.
              // NOLINTNEXTLINE(bugprone-use-after-move)
              expect_error(report, ErrorCode::not_initialised, {"closed"}, [&] { session.size(); });
              int one = 1;
              allreduce(one, {.session = &moved});
              report.expect_equal(one, 2, "the sum");
              moved.close();
          }) == "");
}

TEST_CASE("a session may be closed while other threads of the rank use it") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::latch busy(2);
              const auto until_closed = [&](const std::function<void()>& act) {
                  bool first = true;
                  for (;;) {
                      const auto error = error_of(act);
                      if (std::exchange(first, false)) busy.count_down();
                      if (error) return error->code();
                  }
              };
              ErrorCode worker_end{}, reader_end{};
              {
                  const std::jthread worker([&] {
                      worker_end = until_closed([&] {
                          int one = 1;
                          allreduce(one, {.name = "until the end", .session = &session});
                      });
                  });
                  const std::jthread reader([&] {
                      reader_end = until_closed([&] { session.rank(), session.local_rank(); });
                  });
                  busy.wait();
                  session.close();
              }
              report.expect(
                  worker_end == ErrorCode::not_initialised || worker_end == ErrorCode::departed,
                  "the worker's end");
              report.expect(reader_end == ErrorCode::not_initialised, "the reader's end");
          }) == "");
}

TEST_CASE("the process's session may end and begin anew while another thread asks for it") {
    const std::jthread asking([](const std::stop_token& end) {
        while (!end.stop_requested()) error_of([] { Session::current().size(); });
    });
    for (int again = 0; again < 20; ++again) Session().close();
    CHECK_FALSE(is_initialized());
}

TEST_CASE("jobs of threads follow each other and lie within each other") {
    for (int again = 0; again < 10; ++again)
        CHECK(problems_among(2, [](Session& session, Report& report) {
                  expect_usable(session, report);
              }) == "");
    CHECK(problems_among(2, [](Session& session, Report& report) {
              const auto inner = problems_among(
                  3, [](Session& own, Report& inside) { expect_usable(own, inside); });
              report.expect(inner.empty(), inner);
              expect_usable(session, report);
          }) == "");
}

TEST_CASE(
    "sessions close though more sends are on their way than the rings of their receivers hold") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              std::vector<float> number(1);
              std::vector<Handle> handles;
              for (int i = 0; session.rank() == 2 && i < 3000; ++i)
                  handles.push_back(send_async(number, 1, {.session = &session}));
              session.close();
              for (const auto& handle : handles)
                  expect_error(report, ErrorCode::departed, {"has shut down"},
                               [&] { handle.wait(); });
          }) == "");
}

TEST_CASE("traffic counts what a rank sends") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> numbers(100'000);
              const auto before = traffic(&session);
              allreduce(numbers);
              const auto between = traffic(&session);
              report.expect(
                  between.bytes - before.bytes == 400'000,
                  text_of("two ranks stage all once, not ", between.bytes - before.bytes));
              report.expect(between.messages == before.messages, "messages for what is staged");
              allreduce(numbers, {.op = ReduceOp::adasum});  // which is not staged
              const auto after = traffic(&session);
              report.expect(after.bytes - between.bytes >= 400'000,
                            text_of("all is sent, not ", after.bytes - between.bytes));
              report.expect(after.messages > between.messages, "messages");
          }) == "");
}

TEST_CASE("without mpirun a process is a job of one rank, again and again") {
    for (int again = 0; again < 3; ++again) {
        Session session;
        CHECK(session.size() == 1);
        {
            Session second;  // shares it
            CHECK(second.runtime() == session.runtime());
            second.close();
        }
        init();
        CHECK(is_initialized());
        int number = 5;
        allreduce(number);
        CHECK(number == 5);
        session.close();
        CHECK(rank() == 0);  // init() still holds it
        shutdown();
        CHECK_FALSE(is_initialized());
        shutdown();  // one too many
    }
}

TEST_CASE("a process that leaves has no session, however many shared it, and may begin anew") {
    Session session;
    init();
    Session::current().leave("there is nothing to do");
    CHECK_FALSE(is_initialized());
    CHECK(code_of([] { rank(); }) == ErrorCode::not_initialised);
    CHECK(code_of([] { barrier(); }) == ErrorCode::not_initialised);
    CHECK(code_of([&] { barrier({.session = &session}); }) == ErrorCode::not_initialised);
    init();
    CHECK(rank() == 0);
    session.close();  // of the job before
    CHECK(rank() == 0);
    shutdown();
    CHECK_FALSE(is_initialized());
    shutdown();  // that of the job before
}

TEST_CASE("a session that cannot start leaves room for the next") {
    {
        const Environment environment("GUOZHUANG_FUSION_BYTES", "abc");
        CHECK_THROWS_AS(Session(), Error);
        CHECK_THROWS_AS(init(), Error);
    }
    CHECK_FALSE(is_initialized());
    Session session;
    CHECK(session.size() == 1);
    session.close();
    const auto error = error_of([] { rank(); });
    REQUIRE(error);
    CHECK(std::string(error->what()).find("the session has been closed") == 0);
}

TEST_CASE("an exception that leaves a session does not wait for the others") {
    CHECK_THROWS_WITH(
        [] {
            const Session session;
            throw std::runtime_error("mine");
        }(),
        "mine");
    CHECK_FALSE(is_initialized());
    CHECK(Session().size() == 1);
}

TEST_CASE("run gives what its body returns, and logs the exception that ends it") {
    const LogCapture log;
    CHECK(run(nullptr, nullptr, [](Session& session) { return session.size() + 4; }) == 5);
    CHECK(run(nullptr, nullptr,
              [](Session&) -> int { throw std::runtime_error("no such file"); }) == 1);
    CHECK(run(nullptr, nullptr, [](Session&) -> int { throw 7; }) == 1);
    CHECK(log.with("std::runtime_error: no such file").size() == 1);
    CHECK(log.with("int").size() == 1);
    CHECK_FALSE(is_initialized());
}

TEST_CASE("a rank that leaves tells the others why, and waits for nobody") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              float number = 1;
              if (session.rank() == 1) {
                  session.leave("enough");
                  session.leave("again");
                  session.close();
                  return expect_error(report, ErrorCode::not_initialised, {"closed"},
                                      [&] { allreduce(number, {.session = &session}); });
              }
              expect_error(report, ErrorCode::departed,
                           {"rank 1 has shut down (enough); allreduce 'grad7' waits for it"},
                           [&] { allreduce(number, {.name = "grad7"}); });
              session.leave("so do I");
          }) == "");
}

TEST_CASE("a rank that leaves in the middle of a send keeps nobody waiting for its half") {
    for (int i = 0; i < 50; ++i)
        CHECK(problems_among(3, [](Session& session, Report& report) {
                  const auto number = std::make_shared<float>(1.0f);
                  if (session.rank() == 1) {
                      send_async(*number, 2, {.keep_alive = number, .session = &session});
                      return session.leave("enough");
                  }
                  try {
                      if (session.rank() == 2) recv(*number, 1, {.session = &session});
                  } catch (const Error& error) {
                      report.expect(error.code() == ErrorCode::departed, error.what());
                  }
                  session.leave("so do I");
              }) == "");
}

TEST_CASE("a job of threads does not shrink") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              for (auto* each : {&session, &Session::current()}) try {
                      each->shrink();
                      report.expect(false, "it has shrunk");
                  } catch (const Error& error) {
                      report.expect(std::string_view(error.what()) ==
                                        "shrink: the ranks are threads of one process, which end "
                                        "together",
                                    error.what());
                  }
          }) == "");
}
