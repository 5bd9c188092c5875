// Requests that are given up: who fails, who owes them, and whose votes still count.
#include "support/catch.hpp"
#include "support/negotiation.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using Kind = engine::LogEntry::Kind;

namespace {

/// Rank 2 has not submitted it when rank 0 gives it up.
void give_up(Negotiation& three, const std::string& reason) {
    for (const int rank : {0, 1}) three.submit(rank, tensor("x"));
    three.settle();
    three.withdraw(0, "x", reason);
    three.settle();
    for (int rank = 0; rank < 3; ++rank) {
        REQUIRE_FALSE(three.log(rank).empty());
        const auto& last = three.log(rank).back();
        CHECK(last.kind == Kind::fail);
        CHECK(last.code == ErrorCode::timeout);
        CHECK(last.text == reason);
    }
}

}  // namespace

TEST_CASE("what is given up fails on all that have submitted it, and its next round is whole") {
    const auto degree = GENERATE(1, 16);
    Negotiation three(3, {.degree = degree});
    give_up(three, "too long");
    for (const int rank : {0, 1}) CHECK_FALSE(three.at(rank).debt("x"));
    const auto debt = three.at(2).debt("x");
    REQUIRE(debt);
    CHECK(debt->text == "too long");
    CHECK_FALSE(three.at(2).debt("x"));
    three.submit_everywhere(tensor("x"));
    three.settle();
    CHECK(three.log(2).back().kind == Kind::execute);
    for (int rank = 0; rank < 3; ++rank) CHECK(three.at(rank).holdings().submissions == 0);
}

TEST_CASE("a rank that has missed several rounds owes each of them, in their order") {
    Negotiation three(3, {});
    for (const auto* reason : {"first", "second"}) give_up(three, reason);
    for (const auto* reason : {"first", "second"}) {
        const auto debt = three.at(2).debt("x");
        REQUIRE(debt);
        CHECK(debt->text == reason);
    }
    CHECK_FALSE(three.at(2).debt("x"));
}

TEST_CASE("a rank that joins owes nothing: it stands in for what it has missed") {
    Negotiation three(3, {});
    give_up(three, "before it joined");
    three.join(2);
    three.settle();
    CHECK_FALSE(three.at(2).debt("x"));
    for (const int rank : {0, 1}) three.submit(rank, tensor("y"));
    three.settle();
    three.withdraw(0, "y", "while it stood in: too late");
    CHECK(three.log(2).back().kind == Kind::execute);
    for (const int rank : {0, 1}) three.join(rank);
    three.settle();
    CHECK_FALSE(three.at(2).debt("y"));
    three.submit_everywhere(tensor("x"));
    three.settle();
    CHECK(three.log(2).back().kind == Kind::execute);
}

TEST_CASE("a withdrawal that crosses the last vote has no effect if the root has decided") {
    Negotiation two(2, {});
    two.submit_everywhere(tensor("x"));
    two.flush(1);
    two.deliver({1, 0});
    two.withdraw(1, "x", "too late");  // which has not heard yet
    two.settle();
    REQUIRE(two.log(1).size() == 1);
    CHECK(two.log(1).back().kind == Kind::execute);
}

TEST_CASE("votes on their way for a round that has been given up do not count for the next") {
    Negotiation three(3, {});
    for (const int rank : {0, 1}) three.submit(rank, tensor("x"));
    three.settle();
    three.submit(2, tensor("x"));
    three.flush(2);  // its vote is on the way
    three.withdraw(0, "x", "too long");
    three.settle();
    CHECK(three.log(2).back().kind == Kind::fail);
    CHECK_FALSE(three.at(2).debt("x"));  // its own submission has failed
    for (const int rank : {0, 1}) three.submit(rank, tensor("x"));
    three.settle();
    CHECK(three.log(0).back().kind == Kind::fail);  // rank 2 is waited for
    three.submit(2, tensor("x"));
    three.settle();
    CHECK(three.log(0).back().kind == Kind::execute);
}
