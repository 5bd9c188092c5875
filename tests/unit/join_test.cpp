// Joining: how it is negotiated, and what comes of it on ranks that are threads.
#include "support/cases/join_cases.hpp"
#include "support/fakes/negotiation.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/sanitizer.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using protocol::LogEntry;
using Kind = protocol::LogEntry::Kind;

namespace {

/// The last entry of rank 0's log, which all ranks have.
const LogEntry& last_of(const Negotiation& negotiation) {
    for (int rank = 1; rank < negotiation.size(); ++rank)
        CHECK((negotiation.log(rank) == negotiation.log(0)));
    return negotiation.log(0).back();
}

}  // namespace

TEST_CASE("what is executed names the ranks that have joined, and describes it to them") {
    const auto degree = GENERATE(1, 16);
    Negotiation three(3, {.degree = degree});
    three.join(1);
    three.submit(0, tensor("a"));
    three.submit(2, tensor("a"));
    three.settle();
    CHECK(last_of(three).absent == std::vector<int>{1});
    CHECK(*last_of(three).items.front().description == tensor("a"));
    const auto id = last_of(three).items.front().id;
    for (const int rank : {2, 0}) three.join(rank);
    three.settle();
    CHECK(last_of(three).kind == Kind::join);
    CHECK(last_of(three).text.empty());
    three.submit_everywhere(tensor("a"));
    three.settle();
    CHECK(last_of(three).absent.empty());
    CHECK_FALSE(last_of(three).items.front().description);
    CHECK(last_of(three).items.front().id == id);
    for (int rank = 0; rank < 3; ++rank) CHECK(three.at(rank).holdings().submissions == 0);
}

TEST_CASE("only what the same ranks have not submitted is fused") {
    Negotiation three(3, {});
    three.submit(1, tensor("early"));
    three.join(1);
    for (const int rank : {0, 2})
        for (const auto* name : {"early", "late", "later"}) three.submit(rank, tensor(name));
    three.settle();
    REQUIRE(three.log(0).size() == 2);
    CHECK(three.log(0)[0].absent.empty());
    CHECK(three.log(0)[1].items.size() == 2);
    CHECK(three.log(0)[1].absent == std::vector<int>{1});
}

TEST_CASE("descriptions for a joined rank share an entry only as far as a message holds it") {
    Negotiation two(2, {});
    two.join(1);
    two.settle();
    for (int i = 0; i < 64; ++i) {
        auto described = tensor(std::to_string(i));
        described.tensors.front().name = std::string(60'000, 'n');
        two.submit(0, "name " + std::to_string(i), described);
    }
    two.flush(0);
    for (const auto& message : two.links().at({0, 1})) CHECK(message.size() < (2u << 20) + 65'536);
    two.settle();
    CHECK(two.log(1).size() > 1);
}

TEST_CASE("the last to join is the one whose word came last") {
    Negotiation three(3, {});
    for (const int rank : {2, 0, 1}) {
        three.join(rank);
        three.settle();
    }
    CHECK(last_of(three).ranks == std::vector<int>{1});
}

TEST_CASE(
    "a rank that shuts down instead of joining fails the join, and those that have joined are "
    "active again") {
    Negotiation three(3, {});
    three.join(0);
    three.join(1);
    three.shut_down(2, "why");
    three.settle();
    CHECK(last_of(three).kind == Kind::join);
    CHECK(last_of(three).code == ErrorCode::departed);
    CHECK(last_of(three).ranks == std::vector<int>{2});
    CHECK(last_of(three).text == "rank 2 has shut down (why); join 'join' waits for it");
    three.submit(0, tensor("a"));
    three.settle();
    CHECK(last_of(three).kind == Kind::join);  // rank 1 is waited for
    three.submit(1, tensor("a"));
    three.settle();
    CHECK(last_of(three).text == "rank 2 has shut down (why); allreduce 'a' waits for it");
}

TEST_CASE("a rank that has joined and then shuts down has joined") {
    Negotiation three(3, {});
    three.join(2);
    three.shut_down(2);
    for (const int rank : {0, 1}) three.submit(rank, tensor("a"));
    three.settle();
    CHECK(last_of(three).absent == std::vector<int>{2});
    for (const int rank : {0, 1}) three.join(rank);
    three.settle();
    CHECK(last_of(three).text.empty());
}

TEST_CASE("a name that ranks submit although they have joined gets one id") {
    Negotiation four(4, {.degree = 2});
    for (const int rank : {0, 1, 2}) four.join(rank);
    four.flush(3);
    four.join(3);
    four.submit_everywhere(tensor("a"));
    four.settle();
    CHECK(last_of(four).kind == Kind::join);
    for (int rank = 0; rank < 4; ++rank) CHECK(four.at(rank).holdings().ids == 1);
}

TEST_CASE("a log that has a rank contribute neutrally which has not joined is refused") {
    Negotiation two(2, {});
    two.join(1);
    two.submit(0, tensor("a"));
    for (int rank : {1, 0}) two.flush(rank);
    two.deliver({1, 0});
    two.flush(0);
    const auto message = two.links().at({0, 1}).front();
    Negotiation others(2, {});
    CHECK_THROWS_WITH(others.at(1).receive(0, message), "the log holds an entry that cannot be");
    CHECK_NOTHROW(two.at(1).receive(0, message));
}

TEST_CASE("joins on any number of ranks") {
    for (const int ranks : rank_counts({1, 2, 3, 4, 5}))
        for (const auto& body : all_join_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("joins of ranks with tensors on a device") {
    for (const int ranks : rank_counts({1, 2, 3, 5}))
        CHECK(problems_among(ranks, uneven_steps_on_a_device) == "");
}

TEST_CASE("joins in turns") {
    for (std::uint64_t turns = 0; turns < 3; ++turns)
        for (const auto& body :
             // These are the cases without process sets.
             {uneven_steps, submissions_around_a_join, training_with_uneven_batches,
              helpers_without_some}) {
            INFO("turns " << turns);
            CHECK(problems_among(3, body, {.turns = turns}) == "");
        }
}

TEST_CASE("after a rank has left at once nobody is taken to be joined") {
    const auto problems = problems_among(3, [](Session& session, Report& report) {
        if (session.rank() == 2) return session.leave("no such file");
        int number = 1;
        if (session.rank() == 0)
            expect_error(report, ErrorCode::departed, {"rank 2 has shut down (no such file)"},
                         [] { join(); });
        expect_error(report, ErrorCode::departed, {"rank 2 has shut down (no such file)"},
                     [&] { allreduce(number, {.name = "x"}); });
    });
    CHECK(problems == "");
}

TEST_CASE("a process set that cannot be removed because a rank has joined can be removed later") {
    const auto problems = problems_among(3, [](Session& session, Report& report) {
        auto set = ProcessSet::create({1, 2});
        if (session.rank() > 0)
            expect_error(report, ErrorCode::departed,
                         {"remove_process_set", "it needs every rank, and rank 0 has joined"},
                         [&] { set.remove(); });
        join();
        set.remove();
        expect_usable(session, report);
    });
    CHECK(problems == "");
}

TEST_CASE("those that have joined hear that a rank has left instead") {
    const auto problems = problems_among(3, [](Session& session, Report& report) {
        if (session.rank() == 2) return;
        expect_error(report, ErrorCode::departed,
                     {"rank 2 has shut down; join '#1 join' waits for it"}, [] { join(); });
    });
    CHECK(problems == "");
}
