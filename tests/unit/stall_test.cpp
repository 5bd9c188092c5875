// Operations that do not come forward: what is said about them, and how they are given up. Ranks are threads.
#include <atomic>
#include <guozhuang/guozhuang.hpp>
#include <mutex>
#include <regex>
#include <thread>

#include "engine/stall_watch.hpp"
#include "support/catch.hpp"
#include "support/environment.hpp"
#include "support/error_cases.hpp"
#include "support/report.hpp"

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

}  // namespace

TEST_CASE("a warning names who waits, who is missing and what it is doing") {
    const Environment quickly("GUOZHUANG_STALL_WARN_S", "0.05");
    Warnings warnings;
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        int ones = 1, lonely = 1;
        allreduce(ones, {.name = "before"});
        if (session.rank() == 2)
            wait_for(warnings,
                     "allreduce 'loss' has been waiting for [0-9.]+ s on ranks 0,1; rank 2 has not submitted it "
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
    CHECK(warnings.have("allreduce 'b' has been waiting for [0-9.]+ s on rank 2; rank 1 has not submitted it \\(a thread"));
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
        const auto wrong_set =
            self == 0 ? allreduce_async(b, {.name = "accuracy", .process_set = set}) : allreduce_async(b, {.name = "accuracy"});
        wait_for(warnings,
                 "allreduce 'losses' .*rank 1 has not submitted it and waits for allreduce 'loss': is that meant to be the same\\?");
        wait_for(warnings,
                 "allreduce 'accuracy' in process set 0,1 .*rank 1 has not submitted it and waits for allreduce 'accuracy': is that");
        allreduce(c, {.name = "both have seen it"});
        const auto right = allreduce_async(d, {.name = self == 0 ? "loss" : "losses"});
        const auto right_set =
            self == 1 ? allreduce_async(e, {.name = "accuracy", .process_set = set}) : allreduce_async(e, {.name = "accuracy"});
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
            wait_for(warnings,
                     sends ? "send to 1 has been .* and waits for send to 0: where both send first, neither receives; use send_async"
                           : "recv from 1 has been .* and waits for recv from 0: where both receive first, neither sends");
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
        wait_for(warnings, "recv from 2 has been waiting for [0-9.]+ s on rank 0; rank 2 has not submitted it");
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

TEST_CASE("what waits too long is given up, and whoever comes late gets the error") {
    const bool for_all = GENERATE(true, false);
    const Environment silent("GUOZHUANG_STALL_WARN_S", "off"), quickly("GUOZHUANG_STALL_ERROR_S", for_all ? "0.05" : "off");
    const auto ranks = GENERATE(2, 3, 5);
    const auto problems = problems_among(ranks, [&](Session& session, Report& report) {
        const int last = session.size() - 1;
        int number = 1, word = 0;
        const AllreduceOptions options{.name = "loss", .timeout = for_all ? 0ms : 50ms};
        if (session.rank() == last)
            for (int rank = 0; rank < last; ++rank) recv(word, rank, {.timeout = 20s});
        const auto text = text_of("allreduce 'loss' is given up after");
        expect_error(report, ErrorCode::timeout, {text, text_of("; rank ", last, " has not submitted it")},
                     [&] { allreduce(number, options); });
        if (session.rank() != last) send(word, last);
        number = 1;
        allreduce(number, {.name = "loss", .timeout = 20s});
        report.expect_equal(number, session.size(), "the next round");
    });
    CHECK(problems == "");
}

TEST_CASE("long names with the same beginning are different names") {
    const Environment silent("GUOZHUANG_STALL_WARN_S", "off");
    const auto problems = problems_among(2, [&](Session& session, Report& report) {
        const auto name = std::string(300, 'x') + (session.rank() == 0 ? "a" : "b");
        float number = 1;
        const auto error = error_of([&] { allreduce(number, {.name = name, .timeout = 50ms}); });
        report.expect(error && error->code() == ErrorCode::timeout, error ? error->what() : "no error");
        expect_usable(session, report);
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
            handles.push_back(allreduce_async(numbers[static_cast<std::size_t>(which)], {.name = text_of("grad/layer", which, ".weight")}));
        }
        for (const auto& handle : handles) handle.wait();
        report.expect(numbers == std::vector<int>(operations, 3), "the sums");
    });
    CHECK(problems == "");
    CHECK(warnings.have("rank 2 has not submitted it"));
    CHECK(!warnings.have("ranks? [01](,1)? (has|have) not submitted"));
}

TEST_CASE("at the last moment either all get the sum or all the error") {
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        for (int i = 0; i < 30; ++i) {
            int number = 1;
            if (session.rank() == i % 3) {
                const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i * 100);
                while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
            }
            const auto error = error_of([&] { allreduce(number, {.name = "x", .timeout = 2ms}); });
            report.expect(error ? error->code() == ErrorCode::timeout : number == 3, error ? error->what() : "another sum");
            report.same_everywhere(text_of("round ", i), error ? "given up" : "done");
        }
        expect_usable(session, report);
    });
    CHECK(problems == "");
}

TEST_CASE("rank 0 may be the one that is missing, and busy") {
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        int number = 1, word = 0;
        static std::atomic<int> told;
        if (session.rank() == 0) {
            told = 0;
            send(word, 1);
            while (told < 2) std::this_thread::yield();  // without a call of the library
        }
        if (session.rank() == 1) recv(word, 0);
        expect_error(report, ErrorCode::timeout, {"allreduce 'x' is given up"}, [&] { allreduce(number, {.name = "x", .timeout = 30ms}); });
        ++told;
        expect_usable(session, report);
    });
    CHECK(problems == "");
}

TEST_CASE("a send or receive is given up on both sides, and the next one meets its peer") {
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        int word = session.rank() + 1;
        const auto meet = [&](std::chrono::milliseconds limit) {
            if (session.rank() == 0) recv(word, 2, {.tag = 3, .timeout = limit});
            if (session.rank() == 2) send(word, 0, {.tag = 3});
        };
        const std::string why = "recv from 2 is given up after";
        if (session.rank() == 0) expect_error(report, ErrorCode::timeout, {why, "rank 2 has not submitted it"}, [&] { meet(20ms); });
        barrier();
        if (session.rank() == 2) expect_error(report, ErrorCode::timeout, {why}, [&] { meet(20ms); });
        barrier();
        meet(20s);
        report.expect_equal(word, session.rank() == 0 ? 3 : session.rank() + 1, "the word");
        expect_error(report, ErrorCode::invalid_argument, {"timeout of -1 ms"}, [&] { recv(word, 0, {.timeout = -1ms}); });
        expect_usable(session, report);
    });
    CHECK(problems == "");
}

TEST_CASE("a receive from oneself is given up as any other") {
    const auto problems = problems_among(2, [&](Session& session, Report& report) {
        int word = 1;
        const auto self = session.rank();
        const auto why = text_of("recv from ", self, " is given up after");
        const auto error = error_of([&] { recv(word, self, {.timeout = 20ms}); });
        report.expect(error && error->code() == ErrorCode::timeout && std::string(error->what()).starts_with(why), "no timeout");
        report.expect(error && std::string(error->what()).ends_with(text_of("on rank ", self)), "others are accused");
        expect_error(report, ErrorCode::timeout, {why}, [&] { send(word, self); });
        expect_usable(session, report);
    });
    CHECK(problems == "");
}

// Whichever comes first: either the word arrives or both sides get the error.
TEST_CASE("a send comes about when its receive is given up") {
    std::atomic<int> given_up = 0;
    const auto problems = problems_among(2, [&](Session& session, Report& report) {
        for (int i = 0; i < 200; ++i) {
            int word = session.rank();
            if (session.rank() == 1) {
                const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i * 30);
                while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
            }
            const auto error = error_of([&] { session.rank() == 1 ? send(word, 0) : recv(word, 1, {.timeout = 3ms}); });
            report.expect(error ? error->code() == ErrorCode::timeout : word == 1, error ? error->what() : "a wrong word");
            report.same_everywhere(text_of("round ", i), error ? "given up" : "done");
            if (error) ++given_up;
        }
        expect_usable(session, report);
    });
    CHECK(problems == "");
    CHECK(given_up > 0);
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

// Whichever comes first: either all get the sum or all get the error.
TEST_CASE("limits that are reached about when the last rank comes") {
    std::atomic<int> given_up = 0;
    const auto problems = problems_among(3, [&](Session& session, Report& report) {
        for (int i = 0; i < 60; ++i) {
            int number = 1;
            if (session.rank() == i % 3) {
                const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i * 100);
                while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
            }
            const auto error = error_of([&] { allreduce(number, {.name = text_of("x", i % 4), .timeout = 3ms}); });
            report.expect(error ? error->code() == ErrorCode::timeout : number == session.size(), error ? error->what() : "a wrong sum");
            report.same_everywhere(text_of("round ", i), error ? "given up" : "done");
            if (error) ++given_up;
        }
        expect_usable(session, report);
    });
    CHECK(problems == "");
    CHECK(given_up > 0);  // the last to come was twice the limit late
}

TEST_CASE("a limit cannot be negative") {
    const auto problems = problems_among(1, [](Session&, Report& report) {
        int number = 1;
        expect_error(report, ErrorCode::invalid_argument, {"timeout of -1 ms"}, [&] { allreduce(number, {.timeout = -1ms}); });
        allreduce(number, {.timeout = std::chrono::milliseconds::max()});
    });
    CHECK(problems == "");
}
