// Operations that do not come forward: what is said about them, and how they end the job. Ranks are
// threads.
#include <algorithm>
#include <atomic>
#include <guozhuang/guozhuang.hpp>
#include <mutex>
#include <regex>
#include <set>
#include <thread>

#include "engine/stall_report.hpp"
#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/report.hpp"

using namespace std::chrono_literals;
using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Warnings of all ranks, while it lives.
class Warnings {
public:
    Warnings() {
        set_log_callback([this](LogLevel level, std::string_view text) {
            const std::lock_guard lock(mutex_);
            if (level == LogLevel::warning) text_ += std::string(text) + "\n";
        });
    }
    ~Warnings() { set_log_callback(nullptr); }

    bool have(const std::string& pattern) const {
        const std::lock_guard lock(mutex_);
        return std::regex_search(text_, std::regex(pattern));
    }
    std::string text() const {
        const std::lock_guard lock(mutex_);
        return text_;
    }

private:
    mutable std::mutex mutex_;
    std::string text_;
};

/// Until the warning has come; a test that waits in vain is ended by the watchdog.
void wait_for(const Warnings& warnings, const std::string& pattern) {
    while (!warnings.have(pattern)) std::this_thread::yield();
}

/// Shows rank 2 two ranks that wait for nothing: rank 0 runs, rank 1 is stopped or out of sight.
class Seen final : public engine::JobControl {
public:
    explicit Seen(std::optional<trace::RankStatus> of_rank_1) : of_rank_1_(std::move(of_rank_1)) {}
    void abort(const base::AbortCause&) noexcept override {}
    std::optional<trace::RankStatus> look_at(int rank) override {
        if (rank == 1) return of_rank_1_;
        return trace::RankStatus{.process = "pid 7, sleeping", .doing = "before"};
    }
    bool abandon() noexcept override { return true; }

private:
    std::optional<trace::RankStatus> of_rank_1_;
};

}  // namespace

TEST_CASE("a rank that may have done its part of an operation is not accused beside others") {
    for (const auto& [status, words] :
         {std::pair(std::optional<trace::RankStatus>(), "whether rank 1 has submitted it cannot"),
          std::pair(std::optional(trace::RankStatus{}), "; rank 1 does not answer"),
          std::pair(std::optional(trace::RankStatus{
                        .process = "pid 8, stopped", .is_stopped = true, .doing = "before"}),
                    "; rank 1 does not come forward (pid 8, stopped; before)")}) {
        Seen seen(status);
        const protocol::GroupRanks world;
        engine::SetSnapshot snapshot(world, 3, 2, seen);
        const engine::Stalled stalled{.pending = std::make_shared<engine::Pending>(
                                          engine::Request{.name = protocol::Name("rows")}, nullptr),
                                      .age = 2s,
                                      .limit = 1s};
        const engine::StallReport under_way(stalled, true, snapshot),
            open(stalled, false, snapshot);
        CHECK(under_way.culprit() == 1);
        CHECK(under_way.has_stopped() == status.has_value());  // alone ends a join at its limit
        CHECK(under_way.text().find("rank 0") == std::string::npos);
        CHECK(under_way.text().find(words) != std::string::npos);
        CHECK(open.culprit() == (status ? 1 : 0));  // rank 2 may hear of nothing because of rank 1
    }
}

TEST_CASE("what holds up a join must last as long as its limit") {
    const protocol::GroupRanks world;
    trace::Activity own;
    engine::StallWatch watch({.error = 20ms}, world, own);
    const auto join =
        std::make_shared<engine::Pending>(engine::Request{.name = protocol::Name("join")}, nullptr);
    const engine::Stalled stalled{.pending = join, .age = 2s, .limit = 20ms};
    for (int gap = 0; gap < 2; ++gap) {  // it begins anew after one
        CHECK_FALSE(watch.has_lasted(stalled, true));
        std::this_thread::sleep_for(20ms);
        CHECK(watch.has_lasted(stalled, true));
        CHECK_FALSE(watch.has_lasted(stalled, false));
    }
}

TEST_CASE("a warning names who waits, who is missing and what it is doing") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    Warnings warnings;
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        int ones = 1, lonely = 1;
        allreduce(ones, {.name = "before"});
        if (session.rank() == 2)
            wait_for(warnings,
                     "allreduce 'loss' has been waiting for [0-9.]+ s on ranks 0,1; rank 2 has not "
                     "submitted it "
                     "\\(a thread of this process; after it had submitted allreduce 'before'\\)");
        allreduce(lonely, {.name = "loss"});
        report.expect_equal(lonely, 3, "the sum, once it has come");
    });
    CHECK(problems == "");
}

TEST_CASE("a warning comes from one rank, and not for a join") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    Warnings warnings;
    const auto problems = problems_among(3, [&](Session& session, Report&) {
        int ones = 1;
        if (session.rank() == 1) wait_for(warnings, "'b' has been waiting");
        if (session.rank() == 2) allreduce(ones, {.name = "b"});
        if (session.rank() == 1) allreduce(ones, {.name = "b"});
        join();
    });
    CHECK(problems == "");
    CHECK(
        warnings.have("allreduce 'b' has been waiting for [0-9.]+ s on rank 2; rank 1 has not "
                      "submitted it \\(a thread"));
    CHECK(!warnings.have("rank 0 has not"));
    CHECK(!warnings.have("join"));
}

TEST_CASE("names that are nearly the same are pointed out, and those in another set") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    Warnings warnings;
    const auto problems = problems_among(2, [&](Session& session, Report& report) {
        const auto set = ProcessSet::create({0, 1});
        const int self = session.rank();
        int a = 1, b = 1, c = 1, d = 1, e = 1;
        const auto typo = allreduce_async(a, {.name = self == 0 ? "losses" : "loss"});
        const auto wrong_set = self == 0
                                   ? allreduce_async(b, {.name = "accuracy", .process_set = set})
                                   : allreduce_async(b, {.name = "accuracy"});
        wait_for(warnings,
                 "allreduce 'losses' .*rank 1 has not submitted it and waits for allreduce 'loss': "
                 "is that meant to be the same\\?");
        wait_for(warnings,
                 "allreduce 'accuracy' in process set 0,1 .*rank 1 has not submitted it and waits "
                 "for allreduce 'accuracy': is that");
        allreduce(c, {.name = "both have seen it"});
        const auto right = allreduce_async(d, {.name = self == 0 ? "loss" : "losses"});
        const auto right_set = self == 1
                                   ? allreduce_async(e, {.name = "accuracy", .process_set = set})
                                   : allreduce_async(e, {.name = "accuracy"});
        for (const auto& handle : {typo, wrong_set, right, right_set}) handle.wait();
        report.expect_equal(a, 2, "the sum, once it has come");
    });
    CHECK(problems == "");
}

TEST_CASE("sends that face each other get a hint at another order") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    for (const bool sends : {true, false}) {
        Warnings warnings;
        const auto problems = problems_among(2, [&](Session& session, Report& report) {
            int mine = session.rank(), theirs = -1;
            const int peer = 1 - session.rank();
            const auto first = sends ? send_async(mine, peer) : recv_async(theirs, peer);
            wait_for(warnings, sends ? "send to 1 has been .* and waits for send to 0: where both "
                                       "send first, neither receives; use send_async"
                                     : "recv from 1 has been .* and waits for recv from 0: where "
                                       "both receive first, neither sends");
            sends ? recv(theirs, peer) : send(mine, peer);
            first.wait();
            report.expect_equal(theirs, peer, "what has been sent");
        });
        CHECK(problems == "");
        CHECK(!warnings.have("is that meant to be the same"));
    }
}

TEST_CASE("a send or receive without its partner is spoken of") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    Warnings warnings;
    const auto problems = problems_among(3, [&](Session& session, Report&) {
        int word = 0;
        if (session.rank() == 0) recv(word, 2);
        if (session.rank() != 2) return;
        wait_for(
            warnings,
            "recv from 2 has been waiting for [0-9.]+ s on rank 0; rank 2 has not submitted it");
        send(word, 0);
    });
    CHECK(problems == "");
    CHECK(!warnings.have("rank 1 has not submitted"));
}

TEST_CASE("a rank that closes its session is told whom it waits for") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    Warnings warnings;
    const auto problems = problems_among(3, [&](Session& session, Report&) {
        int ones = 1;
        allreduce(ones, {.name = "before"});
        if (session.rank() == 2)
            wait_for(warnings,
                     "close has been waiting for [0-9.]+ s on ranks 0,1; rank 2 has not closed "
                     "\\(a thread of this process; after it had submitted allreduce 'before'\\)");
    });
    CHECK(problems == "");
}

TEST_CASE("with more pending than a rank can publish nobody is accused who has submitted") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.1");
    Warnings warnings;
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        constexpr int operations = 100;
        std::vector<int> numbers(operations, 1);
        std::vector<Handle> handles;
        if (session.rank() == 2) wait_for(warnings, "more operations have been waiting as long");
        for (int i = 0; i < operations; ++i) {  // in another order on each rank
            const int which = (i + session.rank() * 37) % operations;
            handles.push_back(allreduce_async(numbers[static_cast<std::size_t>(which)],
                                              {.name = text_of("grad/layer", which, ".weight")}));
        }
        for (const auto& handle : handles) handle.wait();
        report.expect(numbers == std::vector<int>(operations, 3), "the sums");
    });
    CHECK(problems == "");
    CHECK(warnings.have("rank 2 has not submitted it"));
    CHECK(!warnings.have("ranks? [01](,1)? (has|have) not submitted"));
}

namespace {

/// How operations of a job's ranks end.
class Ends {
public:
    /// Runs the act and notes its end: the text of an Error(timeout), or the name of another end.
    template <class Act>
    void of(Act&& act) {
        const auto error = error_of(act);
        auto end = !error                                ? "no error"
                   : error->code() != ErrorCode::timeout ? text_of(name_of(error->code()))
                                                         : std::string(error->what());
        const std::lock_guard lock(mutex_);
        all_.push_back(std::move(end));
    }
    /// Without a call of the library.
    void wait_for(std::size_t count) const {
        while (all().size() < count) std::this_thread::yield();
    }
    std::vector<std::string> all() const {
        const std::lock_guard lock(mutex_);
        return all_;
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::string> all_;
};

/// Runs a job that a limit ends, with `body(session, ends)`. Expects `count` noted ends with one
/// text, and returns that.
template <class Body>
std::string one_end(int ranks, std::size_t count, Body&& body) {
    const LogCapture silent;
    Ends ends;
    const auto job = [&](Session& session) {
        // So that none is told before its session has begun; it may be told before this returns.
        if (const auto told = error_of([] { barrier({.timeout = 20s}); }))
            return ends.of([&] { throw *told; });
        body(session, ends);
    };
    CHECK_THROWS_AS(run_ranks(ranks, job), Error);  // none can close its session
    const auto all = ends.all();
    CHECK(all.size() == count);
    CHECK(std::set(all.begin(), all.end()).size() == 1);
    CHECK(std::ranges::count(all, "no error") == 0);
    return all.empty() ? "" : all.front();
}

}  // namespace

TEST_CASE("what waits too long ends the job for all ranks, with the report as its cause") {
    const bool for_all = GENERATE(true, false);
    const Environment silent("GUOZHUANG_STALL_WARN_S", "off"),
        quickly("GUOZHUANG_STALL_ERROR_S", for_all ? "0.05" : "off");
    const int ranks = GENERATE(2, 3, 5), last = ranks - 1;
    const auto end =
        one_end(ranks, static_cast<std::size_t>(3 * ranks), [&](Session& session, Ends& ends) {
            int number = 1, other = 1, later = 1;
            const AllreduceOptions options{.name = "loss", .timeout = for_all ? 0ms : 50ms};
            if (session.rank() == last) ends.wait_for(static_cast<std::size_t>(last));
            if (session.rank() == last)
                return ends.of([&] { allreduce(number, options); }), ends.of([&] { barrier(); }),
                       ends.of([&] { join(); });
            const auto pending = allreduce_async(other, {.name = "pending"});
            ends.of([&] { allreduce(number, options); });
            ends.of([&] { pending.wait_for(20s); });
            ends.of([&] { allreduce(later, {.name = "later"}); });
        });
    CHECK_THAT(end, Catch::Matchers::Matches("allreduce '(loss|pending)' has been waiting for "
                                             "0.[0-9]+ s \\(its limit is 0.050 s\\) on ranks? "
                                             "[0-9,]+; rank " +
                                             std::to_string(last) + " has not submitted it.*"));
}

TEST_CASE("limits that are reached at the same time give one cause") {
    for (int i = 0; i < 20; ++i)
        one_end(3, 3, [&](Session& session, Ends& ends) {
            int number = 1;
            ends.of([&] {
                allreduce(number, {.name = text_of("of rank ", session.rank()), .timeout = 10ms});
            });
        });
}

TEST_CASE("long names with the same beginning are different names") {
    const auto end = one_end(2, 2, [](Session& session, Ends& ends) {
        const auto name = std::string(300, 'x') + (session.rank() == 0 ? "a" : "b");
        float number = 1;
        ends.of([&] { allreduce(number, {.name = name, .timeout = 50ms}); });
    });
    CHECK_THAT(end, Catch::Matchers::Contains(" has not submitted it"));
}

TEST_CASE("a send or receive that waits too long ends the job as any other operation") {
    const auto end = one_end(3, 3, [](Session& session, Ends& ends) {
        int word = 0;
        if (session.rank() == 2) ends.wait_for(2);
        ends.of(
            [&] { session.rank() == 0 ? recv(word, 2, {.tag = 3, .timeout = 20ms}) : barrier(); });
    });
    CHECK_THAT(end, Catch::Matchers::Matches("recv from 2 has been waiting for 0.[0-9]+ s \\(its "
                                             "limit is 0.020 s\\) on rank 0; rank 2 has not .*"));
}

TEST_CASE("so does a receive from oneself, and nobody else is accused") {
    const auto end = one_end(2, 2, [](Session& session, Ends& ends) {
        int word = 1;
        ends.of([&] { session.rank() == 1 ? recv(word, 1, {.timeout = 20ms}) : barrier(); });
    });
    CHECK_THAT(end, Catch::Matchers::StartsWith("recv from 1 ") &&
                        Catch::Matchers::EndsWith(" on rank 1"));
}

// Whichever comes first. The limit of one rank ends the job for all.
TEST_CASE("at the last moment either all get the sum or none") {
    const LogCapture silent;
    for (int i = 0; i < 40; ++i) {
        std::atomic<int> sums = 0;
        const auto job = [&](Session& session) {
            int number = 1;
            const auto until = std::chrono::steady_clock::now() +
                               std::chrono::microseconds(session.rank() == i % 3 ? i * 200 : 0);
            while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
            allreduce(number, {.name = "x", .timeout = 4ms});
            sums += number == 3 ? 1 : 100;
        };
        try {
            run_ranks(3, job);
            CHECK(sums == 3);
        } catch (const Error& error) {
            CHECK(error.code() == ErrorCode::timeout);
            CHECK(sums == 0);
        }
    }
}

TEST_CASE("a wait with a limit of its own merely stops waiting, and joins and closing have none") {
    const Environment quickly("GUOZHUANG_STALL_ERROR_S", "0.05");
    const auto problems = problems_among(2, [](Session& session, Report& report) {
        int number = 1;
        if (session.rank() == 0) {
            const auto handle = allreduce_async(number, {.name = "x", .timeout = 20s});
            report.expect(!handle.wait_for(100ms), "there is nobody to be waited for");
            handle.wait();
        } else {
            std::this_thread::sleep_for(200ms);  // no call of the library: longer than the limit
            allreduce(number, {.name = "x", .timeout = 20s});
        }
        report.expect_equal(number, 2, "the sum");
        if (session.rank() == 1) std::this_thread::sleep_for(200ms);
        join();
        if (session.rank() == 0) std::this_thread::sleep_for(200ms);
    });
    CHECK(problems == "");
}

TEST_CASE("a limit that is not reached changes nothing") {
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        for (int i = 0; i < 200; ++i) {
            int number = 1;
            allreduce(number, {.name = "x", .timeout = 20s});
            report.expect_equal(number, session.size(), "the sum");
        }
    });
    CHECK(problems == "");
}

TEST_CASE("a limit cannot be negative") {
    const auto problems = problems_among(1, [](Session&, Report& report) {
        int number = 1;
        expect_error(report, ErrorCode::invalid_argument, {"timeout of -1 ms"},
                     [&] { allreduce(number, {.timeout = -1ms}); });
        allreduce(number, {.timeout = std::chrono::milliseconds::max()});
    });
    CHECK(problems == "");
}
