// A lack of memory leaves nothing behind. Allocations on the test thread fail when it says so.
#include <guozhuang/guozhuang.hpp>
#include <latch>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "protocol/request_cache.hpp"
#include "scarce_memory.hpp"
#include "support/cases/error_cases.hpp"
#include "support/fakes/engine_rank.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/report.hpp"

namespace guozhuang::test {
namespace {

using namespace std::chrono_literals;

/// Does it with so much memory that the first allocation fails, then with a little more, until it
/// works. How often it did not is counted.
template <class Submission>
Handle submit_in_the_end(Submission&& submission, int& failures) {
    for (int enough = 0;; ++enough) {
        const Scarcity scarcity(enough);
        try {
            return submission();
        } catch (const std::bad_alloc&) {
            ++failures;
        }
    }
}

/// How a wait ends; allocates nothing.
enum class Outcome { done, out_of_memory, aborted, another };

Outcome outcome_of(const Handle& handle) {
    try {
        handle.wait();
        return Outcome::done;
    } catch (const std::bad_alloc&) {
        return Outcome::out_of_memory;
    } catch (const Error& error) {
        if (error.code() == ErrorCode::out_of_memory) return Outcome::out_of_memory;
        return error.code() == ErrorCode::aborted && error.ranks() == std::vector{0}
                   ? Outcome::aborted
                   : Outcome::another;
    }
}

}  // namespace

TEST_CASE("whatever this rank has no memory for while an operation runs, both ranks are told") {
    const auto nothing = [](const engine::Bundle&) {};
    int failures = 0;
    for (auto here = Outcome::out_of_memory; here != Outcome::done; ++failures) {
        CAPTURE(failures);
        wire::InprocHub hub(2);
        EngineRank first(hub.transport(0), nothing, {.own_thread = false}),
            second(hub.transport(1), nothing, {.own_thread = false});
        const auto mine = first.submit("grad"), theirs = second.submit("grad");
        auto there = Outcome::another;
        std::thread other([&] { there = outcome_of(theirs); });
        {
            const Scarcity scarcity(failures);
            here = outcome_of(mine);
        }
        other.join();
        CHECK((here == Outcome::done || here == Outcome::out_of_memory));
        CHECK((there == Outcome::done ||
               (there == Outcome::aborted && here == Outcome::out_of_memory)));
    }
    CHECK(failures > 10);
}

TEST_CASE(
    "a submission that fails for lack of memory has never been: its name is free and its number "
    "not used") {
    wire::InprocHub hub(2);
    const auto nothing = [](const engine::Bundle&) {};
    EngineRank first(hub.transport(0), nothing), second(hub.transport(1), nothing);
    for (const std::string name : {"a name", "another name", ""}) {
        CAPTURE(name);
        int failures = 0;
        const auto here = submit_in_the_end([&] { return first.submit(name); }, failures);
        CHECK(failures > 3);
        const auto there = second.submit(name);
        CHECK(here.wait_for(20s));
        CHECK(there.wait_for(20s));
    }
}

TEST_CASE("a blocking call without a name that fails for lack of memory can be made again") {
    const Environment limit("GUOZHUANG_STALL_ERROR_S", "5");
    std::latch has_failed(1);
    CHECK(problems_among(2, [&](Session& session, Report& report) {
              float number = 0;
              allreduce(number);  // so that counting another takes no memory
              if (session.rank() == 0) {
                  bool fails = false;
                  try {
                      const Scarcity scarcity(0);
                      allreduce(number);
                  } catch (const std::bad_alloc&) {
                      fails = true;
                  }
                  report.expect(fails, "it fails");
                  has_failed.count_down();
              }
              has_failed.wait();
              for (int call = 1; call <= 3; ++call) {
                  number = static_cast<float>(10 * call + session.rank());
                  allreduce(number);
                  report.expect_equal(number, static_cast<float>(20 * call + 1), "the sum");
              }
          }) == "");
}

TEST_CASE("names that are kept take a bounded number of bytes") {
    protocol::RequestCache cache;
    std::pair<protocol::Name, protocol::SharedDescription> first;
    for (int i = 0; i < 200; ++i) {
        const auto identity = cache.get(std::to_string(i) + std::string(60'000, 'x'), {}, {});
        if (i == 0) first = identity;
    }
    // 200 of them are 12 MB, so the first one has been dropped and is made anew.
    const auto again = cache.get("0" + std::string(60'000, 'x'), {}, {});
    CHECK(again.first.text() == first.first.text());
    CHECK(again.first.text().data() != first.first.text().data());
}

TEST_CASE("what is submitted again takes memory for its tensors, its state and perhaps the queue") {
    run_ranks(1, [](Session& session) {
        float number = 7;
        const std::string name = "a name that no string keeps in itself";
        const auto submit = [&] {
            return allreduce_async(number, {.name = name, .session = &session});
        };
        for (int i = 0; i < 10; ++i) submit().wait();
        std::optional<Handle> handle;
        {
            const Scarcity scarcity(3);
            handle = submit();
        }
        handle->wait();
        CHECK(number == 7);
    });
}

TEST_CASE("a kind of device whose first use fails for lack of memory can be used after that") {
    int failures = 0;
    run_ranks(1, [&](Session& session) {
        float number = 7;
        const TensorView tensor(&number, DType::f32, {1}, {DeviceKind::cuda, 0});
        const auto handle = submit_in_the_end(
            [&] { return allreduce_async(tensor, {.name = "grad", .session = &session}); },
            failures);
        handle.wait();
    });
    CHECK(failures > 3);
}

TEST_CASE("a message that cannot be staged fails where it is submitted, and no other rank knows") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              float number = session.rank() == 0 ? 7.0f : 0.0f;
              const auto tensor = [&](std::int64_t count) {
                  return TensorView(&number, DType::f32, {count}, {DeviceKind::cuda, 0});
              };
              const std::string what =
                  ": rank 0 cannot stage its tensor, f32 [1125899906842624] of 4503599627370496 "
                  "bytes, in pinned memory: the host fake cannot allocate ";
              const auto huge = tensor(std::int64_t{1} << 50);
              if (session.rank() == 0) {
                  expect_error(report, ErrorCode::out_of_memory, {"send to 1" + what},
                               [&] { send(huge, 1); });
                  expect_error(report, ErrorCode::out_of_memory, {"recv from 1" + what},
                               [&] { recv(huge, 1); });
              }
              session.rank() == 0 ? send(tensor(1), 1) : recv(tensor(1), 0);
              report.expect(number == 7, "the next message");
          }) == "");
}

}  // namespace guozhuang::test
