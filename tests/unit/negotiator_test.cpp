#include "protocol/negotiator.hpp"

#include <guozhuang/error.hpp>
#include <set>

#include "support/fakes/negotiation.hpp"
#include "support/runner/catch.hpp"

// Negotiations worked out by hand: what an entry holds, what is sent, and how much is kept.
// negotiator_walk_test.cpp shows that all entries keep the rules, whoever leaves or disagrees.

namespace guozhuang::test {
namespace {

using protocol::Description;
using protocol::LogEntry;
using Kind = protocol::LogEntry::Kind;

Negotiation ranks(int size, const protocol::Negotiator::Options& options = {}) {
    return {size, options};
}

/// Rank 0's log, an entry a word: "a+b" is an execution, "!a" a failure, "-a" an id evicted, "end"
/// that all have shut down. On the way all ranks' logs are compared.
std::string log_of(const Negotiation& negotiation) {
    for (int rank = 1; rank < negotiation.size(); ++rank)
        CHECK((negotiation.log(rank) == negotiation.log(0)));
    std::string text;
    for (const auto& entry : negotiation.log(0)) {
        if (!text.empty()) text += ' ';
        if (entry.kind == Kind::fail) text += '!';
        if (entry.kind == Kind::evict) text += '-';
        if (entry.kind == Kind::all_shut_down) text += "end";
        for (const auto& item : entry.items)
            text += (&item == &entry.items.front() ? "" : "+") + item.name.text();
    }
    return text;
}

std::size_t bytes_for(Negotiation& negotiation, const Description& description) {
    const auto before = negotiation.bytes_sent();
    negotiation.submit_everywhere(description);
    negotiation.settle();
    return negotiation.bytes_sent() - before;
}

}  // namespace

TEST_CASE("a rank alone agrees with itself, without a message") {
    auto one = ranks(1);
    one.submit(0, tensor("a"));
    CHECK(one.log(0).empty());
    one.flush(0);
    CHECK(log_of(one) == "a");
    one.shut_down(0);
    one.flush(0);
    CHECK(log_of(one) == "a end");
    CHECK(one.at(0).finished());
    CHECK(one.messages_sent() == 0);
}

TEST_CASE("ranks may submit in any order: the log has one") {
    auto two = ranks(2, {.fusion_bytes = 0});
    for (const auto* name : {"a", "b", "c"}) two.submit(0, tensor(name));
    for (const auto* name : {"c", "a", "b"}) two.submit(1, tensor(name));
    two.settle();
    CHECK(log_of(two) == "c a b");
    for (const auto* name : {"b", "c", "a"}) two.submit_everywhere(tensor(name));
    two.settle();
    CHECK(log_of(two) == "c a b c a b");  // from the second time on in the order of the ids
}

TEST_CASE("a rank hears no more than its parent and children") {
    auto seven = ranks(7, {.degree = 2});
    seven.submit_everywhere(tensor("a"));
    std::set<Negotiation::Link> used;
    for (int rank = 6; rank >= 0; --rank) {
        seven.flush(rank);
        for (const auto& [link, messages] : seven.links()) used.insert(link);
        while (!seven.links().empty()) seven.deliver(seven.links().begin()->first);
    }
    CHECK(used == std::set<Negotiation::Link>{
                      {0, 1}, {0, 2}, {1, 0}, {2, 0}, {3, 1}, {4, 1}, {5, 2}, {6, 2}});
    seven.settle();
    CHECK(seven.messages_sent() == 12);  // one up and one down on each of six links
    CHECK(log_of(seven) == "a");
}

TEST_CASE("a host but the root's sends one message and hears one, however many ranks it has") {
    const std::vector<int> host_of =
        GENERATE(std::vector{0, 0, 0, 0, 1, 1, 1, 2, 2}, std::vector{0, 1, 2, 0, 1, 2, 0, 1, 0});
    auto nine = ranks(9, {.degree = 2, .host_of = host_of});
    nine.submit_everywhere(tensor("a"));
    std::multiset<Negotiation::Link> between_hosts;
    const auto host = [&](int rank) { return host_of[static_cast<std::size_t>(rank)]; };
    for (int rank = 8; rank >= 0; --rank) {
        nine.flush(rank);
        while (!nine.links().empty()) {
            const auto [from, to] = nine.links().begin()->first;
            if (host(from) != host(to)) between_hosts.emplace(from, to);
            nine.deliver({from, to});
        }
    }
    const auto first_of = [&](int which) {
        return static_cast<int>(std::ranges::find(host_of, which) - host_of.begin());
    };
    CHECK(between_hosts ==
          std::multiset<Negotiation::Link>{
              {first_of(1), 0}, {first_of(2), 0}, {0, first_of(1)}, {0, first_of(2)}});
    nine.settle();
    CHECK(nine.messages_sent() == 16);
    CHECK(log_of(nine) == "a");
}

TEST_CASE("a name is spelt once, then its id goes") {
    auto two = ranks(2);
    const auto long_name = tensor(std::string(1000, 'n'));
    CHECK(bytes_for(two, long_name) > 2000);
    for (int round = 0; round < 3; ++round) CHECK(bytes_for(two, long_name) < 32);
}

TEST_CASE("a description that changes on all ranks is simply the new one") {
    auto two = ranks(2);
    bytes_for(two, tensor("a", {4}));
    CHECK(bytes_for(two, tensor("a", {5})) > 40);
    CHECK(bytes_for(two, tensor("a", {5})) < 32);
    REQUIRE(log_of(two) == "a a a");
    CHECK(two.log(0)[0].items == two.log(0)[2].items);
}

TEST_CASE("a mismatch fails on all ranks, naming those at fault, and the next round works") {
    auto five = ranks(5, {.degree = 2});
    for (const bool known : {false, true}) {
        CAPTURE(known);
        for (int rank = 0; rank < 5; ++rank) five.submit(rank, tensor("a", {rank == 3 ? 5 : 4}));
        five.settle();
        REQUIRE(five.log(0).size() == (known ? 3 : 1));
        const auto& failure = five.log(0).back();
        CHECK(failure.code == ErrorCode::mismatch);
        CHECK(failure.text == "allreduce 'a': shapes differ: [4] on ranks 0,1,2,4; [5] on rank 3");
        CHECK(failure.tensor == "a");
        CHECK(failure.operation == "allreduce");
        CHECK(failure.ranks == std::vector{3});
        five.submit_everywhere(tensor("a"));
        five.settle();
    }
    CHECK(log_of(five) == "!a a !a a");
}

TEST_CASE(
    "groups of long descriptions go in messages of their own, and are a report only together") {
    constexpr std::size_t tensors = 40,
                          // One description behind a message that is nearly full.
        longest = tensors * 60'000 + (1u << 20) + 4096;
    const auto group = [](std::int64_t extent) {
        Description description{.group = true, .tensors = {}};
        for (std::size_t i = 0; i < tensors; ++i)
            description.tensors.push_back({std::string(60'000, 'n'), DType::f32, {extent}});
        return description;
    };
    const bool shuts_down = GENERATE(false, true);
    auto chain = ranks(4, {.degree = 1});
    chain.submit(3, "a", group(3));
    if (shuts_down) chain.shut_down(3);
    chain.settle();
    for (const int rank : {0, 1, 2}) chain.submit(rank, "a", group(rank));
    while (chain.log(0).empty() || chain.log(0).back().kind != Kind::fail) {
        for (int rank = 3; rank >= 0; --rank) chain.flush(rank);
        for (const auto& [link, messages] : chain.links())
            for (const auto& message : messages) CHECK(message.size() < longest);
        REQUIRE_FALSE(chain.links().empty());
        chain.deliver(chain.links().begin()->first);
    }
    chain.settle();
    CHECK(log_of(chain) == "!a");
    CHECK(chain.log(0).back().text.find(
              "[0] on rank 0; [1] on rank 1; [2] on rank 2; [3] on rank 3") != std::string::npos);
    CHECK(chain.at(0).holdings().rounds == 0);
}

TEST_CASE("a rank that discards says so to all, also to one that differs besides") {
    auto three = ranks(3, {});
    three.submit(0, tensor("a"));
    three.submit(1, tensor("a", {5}));
    auto discarding = tensor("a");
    discarding.discarded = "bad batch";
    three.submit(2, discarding);
    three.settle();
    CHECK(three.log(0).back().code == ErrorCode::discarded);
    CHECK(three.log(0).back().text == "allreduce 'a' was discarded by rank 2: bad batch");
}

TEST_CASE("long names share an entry only as far as a message holds it") {
    auto two = ranks(2);
    for (int i = 0; i < 64; ++i)
        two.submit_everywhere(tensor(std::to_string(i) + std::string(60'000, 'n')));
    two.flush(1);
    while (!two.links().empty()) two.deliver({1, 0});
    two.flush(0);
    for (const auto& message : two.links().at({0, 1})) CHECK(message.size() < (2u << 20) + 4096);
    two.settle();
    std::size_t executed = 0;
    for (const auto& entry : two.log(1)) executed += entry.items.size();
    CHECK(executed == 64);
    CHECK(two.log(1).size() == 4);
    CHECK((two.log(0) == two.log(1)));
}

TEST_CASE("a reason of any length is a reason") {
    auto three = ranks(3, {.degree = 1});
    three.submit(0, tensor("a"));
    for (const int rank : {1, 2}) three.shut_down(rank, std::string(1 << 20, 'x'));
    three.settle();
    CHECK(log_of(three) == "!a");
}

TEST_CASE("only requests of one kind are fused, up to the threshold") {
    auto two = ranks(2, {.fusion_bytes = 40});
    const auto fused = [&](const std::vector<Description>& requests) {
        const auto before = two.log(0).size();
        for (const auto& request : requests) two.submit_everywhere(request);
        two.settle();
        return two.log(0).size() - before == 1;
    };
    CHECK(fused({tensor("a"), tensor("b")}));
    CHECK(fused({tensor("a", {5}), tensor("b", {5})}));
    CHECK_FALSE(fused({tensor("a", {5}), tensor("b", {6})}));
    CHECK(fused({tensor("a", {1000})}));
    CHECK_FALSE(fused({tensor("a"), tensor("b", {4}, OperationKind::broadcast)}));
    CHECK(fused(
        {tensor("a", {4}, OperationKind::broadcast), tensor("b", {4}, OperationKind::broadcast)}));
    for (const auto operation :
         {OperationKind::all_gather, OperationKind::all_to_all, OperationKind::reduce_scatter})
        CHECK_FALSE(fused({tensor("a", {4}, operation), tensor("b", {4}, operation)}));
    std::vector<Description> others(7, tensor("b"));  // each differs in one thing
    others[0].tensors[0].dtype = DType::i32;
    others[1].op = ReduceOp::average;
    others[2].prescale = 2;
    others[3].postscale = 2;
    others[4].device = DeviceKind::cuda;
    others[5].root = 1;
    others[6].group = true;
    auto group = tensor("a");
    group.group = true;
    CHECK_FALSE(fused({group, others[6]}));
    for (const auto& other : others) {
        CAPTURE(&other - others.data());
        CHECK_FALSE(fused({tensor("a"), other}));
    }
}

TEST_CASE("between hosts a small tensor travels with its request") {
    protocol::Negotiator::Options options{
        .degree = 1, .policy = {.small_bytes = 32}, .host_of = {0, 1, 0, 1, 0}};
    const auto brought = [&](const std::vector<std::string>& tensors, int joined = -1) {
        auto five = ranks(5, options);
        if (joined >= 0) five.join(joined);
        for (const int turn : {1, 2}) {  // described, and by its id
            CAPTURE(turn);
            for (const int rank : {4, 0, 2, 3, 1})
                if (rank != joined)
                    five.submit(rank, "a", tensor("a"), true,
                                std::as_bytes(std::span(tensors[static_cast<std::size_t>(rank)])));
            five.settle();
        }
        REQUIRE(log_of(five) == "a a");
        std::vector<std::string> found;
        for (const auto& entry : five.log(3)) {
            const auto& bytes = entry.contributions;
            found.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        }
        CHECK(found[0] == found[1]);
        return found[0];
    };
    const std::vector<std::string> pairs{"00", "11", "22", "33", "44"};
    CHECK(brought(pairs) == "0011223344");
    CHECK(brought({"00", "11", "22", "", "44"}) == "");
    CHECK(brought({"00", "11", "22", "3", "44"}) == "");
    CHECK(brought(pairs, 3) == "");
    CHECK(brought(std::vector(5, std::string(32, 'x'))) == std::string(160, 'x'));
    CHECK(brought(std::vector(5, std::string(33, 'x'))) == "");
    options.policy.small_bytes = 10'000;
    CHECK(brought(std::vector(5, std::string(819, 'x'))).size() == 5 * 819);
    CHECK(brought(std::vector(5, std::string(820, 'x'))) == "");
    options.policy.forced = Algorithm::ring;
    CHECK(brought(pairs) == "");
    options = {.policy = {.small_bytes = 32}, .host_of = {1, 1, 1, 1, 1}};
    CHECK(brought(pairs) == "");
}

TEST_CASE("requests that bring their tensors are not fused") {
    auto two = ranks(2, {.policy = {.small_bytes = 32}, .host_of = {0, 1}});
    for (const int rank : {0, 1})
        for (const auto* const name : {"a", "b"})
            two.submit(rank, name, tensor(name), true, std::as_bytes(std::span("xyz", 3)));
    two.settle();
    CHECK(log_of(two) == "a b");
}

TEST_CASE("the root's policy is in every entry") {
    const selection::Policy policy{.forced = Algorithm::ring,
                                   .reproducible = true,
                                   .staging = true,
                                   .hierarchy = true,
                                   .small_bytes = 1 << 20,
                                   .segment_bytes = 7};
    auto two = ranks(2, {.policy = policy});
    two.submit_everywhere(tensor("a"));
    two.settle();
    REQUIRE(log_of(two) == "a");
    CHECK(two.log(1)[0].policy == policy);
}

TEST_CASE("names that are used once do not fill the table of ids") {
    auto three = ranks(3, {.degree = 1, .max_ids = 8});
    for (int i = 0; i < 100; ++i) {
        three.submit_everywhere(tensor("weight"));
        three.submit_everywhere(tensor("loss." + std::to_string(i)));
        three.settle();
        for (int rank = 0; rank < 3; ++rank) {
            CHECK(three.at(rank).holdings().ids <= 8);
            CHECK(three.at(rank).holdings().retired <= 2);
        }
    }
    CHECK(bytes_for(three, tensor("weight")) < 64);  // what is used is kept
}

TEST_CASE("an id that is forgotten while it is on its way up still counts") {
    auto two = ranks(2, {.max_ids = 1});
    bytes_for(two, tensor("a"));
    for (const auto* name : {"b", "a"}) {
        two.submit(1, tensor(name));
        two.flush(1);
    }
    two.submit(0, tensor("b"));
    two.deliver({1, 0});
    two.flush(0);
    REQUIRE(two.log(0).size() == 3);
    CHECK(two.log(0).back().kind == Kind::evict);
    CHECK(two.at(0).holdings().retired == 1);
    two.settle();
    two.submit(0, tensor("a"));
    two.settle();
    CHECK(log_of(two) == "a b -a a -b");
}

TEST_CASE("much that is to be sent at once goes in several messages, in order") {
    auto two = ranks(2);
    const std::size_t half = 600'000, requests = 7;
    for (std::size_t i = 0; i < requests; ++i) {
        auto description = tensor(std::to_string(i));
        for (std::size_t bytes = 0; bytes < half; bytes += 50'000)
            description.tensors.push_back({std::string(50'000, 'n'), DType::f32, {1}});
        two.submit(0, description);
        two.submit(1, description);
    }
    two.flush(1);
    const auto& sent = two.links().at({1, 0});
    CHECK(sent.size() == (requests + 1) / 2);
    for (const auto& each : sent) CHECK(each.size() < 3 * half);
    two.settle();
    CHECK(log_of(two) == "0 1 2 3 4 5 6");
}

}  // namespace guozhuang::test
