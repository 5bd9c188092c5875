#include <guozhuang/error.hpp>

#include "protocol/negotiator.hpp"
#include "support/fakes/negotiation.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::test {
namespace {

using protocol::Bytes;
using protocol::Writer;

/// The error text with which the rank refuses a message; empty: it takes it.
std::string refusal(Negotiation& negotiation, int rank, int from, const Bytes& message) {
    try {
        negotiation.at(rank).receive(from, message);
        return "";
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::wire);
        return error.what();
    }
}

/// A message whose sender says that it has applied so many entries, and this record.
template <class... Numbers>
Bytes message(std::uint64_t position, std::uint64_t type, Numbers... numbers) {
    Writer out;
    for (const auto number : {position, type, static_cast<std::uint64_t>(numbers)...})
        out.number(number);
    return out.take();
}

}  // namespace

TEST_CASE("a child that reports what cannot be is refused") {
    constexpr std::uint64_t report = 1, shut_down = 2;
    Negotiation five(5, {.degree = 2});  // 3 and 4 are below 1
    const auto refused = [&](const Bytes& bytes) { return refusal(five, 0, 1, bytes); };
    CHECK(refused(message(1, shut_down, 1, 0, 0)) ==
          "rank 1 has applied log entries that it cannot have");
    CHECK(refused(message(0, shut_down, 2, 0, 0)) ==
          "rank 1 reports for ranks that are not below it");
    CHECK(refused(message(0, 0, 7, 1, 1, 1, 1, 1, 1, 1, 1, 0)) ==
          "rank 1 sent id 7, which nobody has been given");

    const auto barrier = protocol::encode({.operation = OperationKind::barrier, .tensors = {}});
    const auto report_of = [&](std::initializer_list<int> those) {
        auto bytes = message(0, report, 1, 'x', 1, 0, barrier.size());
        bytes.insert(bytes.end(), barrier.begin(), barrier.end());
        bytes.push_back(static_cast<std::byte>(those.size()));  // none: all that are below
        for (const int rank : those) bytes.push_back(static_cast<std::byte>(rank));
        bytes.push_back(std::byte{0});  // no contributions
        return bytes;
    };
    CHECK(refused(report_of({2})) == "rank 1 reports for ranks that are not below it");
    CHECK(refused(report_of({4, 3})) == "rank 1 reports for ranks that are not below it");
    CHECK(refused(report_of({3, 3})) == "rank 1 reports for ranks that are not below it");
    CHECK(refused(report_of({})) == "");
    CHECK(refused(report_of({})) == "more ranks have submitted 'x' than there are");
}

TEST_CASE("a log that cannot be is refused") {
    constexpr std::uint64_t entry = 3, execute = 0, fail = 1, evict = 2, join = 3,
                            all_shut_down = 4, quit = 5;
    Negotiation two(2, {});
    two.submit_everywhere(tensor("a"));  // gets id 1
    two.settle();
    const auto refused = [&](const Bytes& bytes) { return refusal(two, 1, 0, bytes); };
    CHECK(refused(message(0, entry, execute, 0, 0, 0, 0, 0, 0, 0, 0, 0)) ==
          "the log holds an entry that cannot be");
    CHECK(refused(message(0, entry, execute, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 7)) ==
          "the log holds an entry that cannot be");  // contributions to two items
    const auto described = protocol::encode(tensor("a"));
    auto beside_joined = message(0, entry, execute, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, described.size());
    beside_joined.insert(beside_joined.end(), described.begin(), described.end());
    beside_joined.insert(beside_joined.end(), {std::byte{1}, std::byte{7}});
    CHECK(refused(beside_joined) ==
          "the log holds an entry that cannot be");  // contributions, and a rank without one
    CHECK(refused(message(0, entry, execute, 1, 2, 1, 'a', 0, 0, 0, 0)) ==
          "the log gives 'a' an id that is not its own");
    CHECK(refused(message(0, entry, evict, 1, 2, 1, 'b')) ==
          "the log gives 'b' an id that is not its own");
    CHECK(refused(message(0, entry, evict, 2, 1, 1)) == "the log forgets 'a' twice");
    for (const auto kind : {fail, join, quit})  // without items or ranks
        CHECK(refused(message(0, entry, kind, 0, 0, 0, 0, 0, 0, 0)) ==
              "the log holds an entry that cannot be");
    CHECK(refused(message(0, entry, join, 1, 0, 1, 'j', 0, 0, 0, 0, 0, 0)) ==
          "the log holds an entry that cannot be");
    two.join(1, "j");
    CHECK(refused(message(0, entry, execute, 1, 2, 1, 'j', 0, 0, 0, 0, 0, 0, 0, 0)) ==
          "the log executes 'j', which is a join");
    CHECK(refused(message(0, entry, all_shut_down, 0)) == "");
    CHECK(refused(message(0, entry, all_shut_down, 0)) == "the log holds an entry that cannot be");
}

TEST_CASE("messages are refused from those who have no business to send them") {
    Negotiation four(4, {.degree = 1});
    four.submit(3, tensor("a"));
    four.flush(3);
    const auto report = four.links().at({3, 2}).front();
    CHECK(refusal(four, 0, 3, report) != "");
    CHECK(refusal(four, 3, 2, report) != "");
    CHECK(refusal(four, 0, 0, report) != "");
    four.submit(2, tensor("a"));
    CHECK(refusal(four, 2, 3, report) == "");
    four.submit(3, tensor("b"));
    CHECK(refusal(four, 2, 3, {}) != "");
}

}  // namespace guozhuang::test
