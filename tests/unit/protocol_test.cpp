// The nouns that a negotiation is made of, each by itself. How they play together is shown by
// negotiator_test.cpp, join_test.cpp and point_to_point_test.cpp.
#include <guozhuang/error.hpp>
#include <new>
#include <optional>

#include "protocol/attendance.hpp"
#include "protocol/failure.hpp"
#include "protocol/fusion.hpp"
#include "protocol/log_codec.hpp"
#include "protocol/matcher.hpp"
#include "protocol/name_table.hpp"
#include "protocol/outbox.hpp"
#include "protocol/request_cache.hpp"
#include "protocol/tally.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::protocol {
namespace {

using namespace std::literals;
using Kind = LogEntry::Kind;
using Ranks = std::vector<int>;

Description allreduce(const std::string& name, std::int64_t count = 4) {
    return {.tensors = {{name, DType::f32, {count}}}};
}

// --- name table ----------------------------------------------------------------------------------

std::string names_of(const std::vector<Item>& items) {
    std::string text;
    for (const auto& item : items) text += item.name.text();
    return text;
}

}  // namespace

TEST_CASE("an id stands for a name and what was executed under it last") {
    NameTable names(Ranks{});
    CHECK(names.find("a"sv) == nullptr);
    CHECK(names.with_id(1) == nullptr);
    CHECK(names.new_id() == 1);
    CHECK(names.new_id() == 2);
    names.use(names.row("a"sv), 1, share(allreduce("a", 4)), 1);
    names.use(names.row("a"sv), 1, share(allreduce("a", 5)), 2);
    const auto* const known = names.find("a"sv);
    REQUIRE(known != nullptr);
    CHECK(known->id == 1);
    CHECK(names.with_id(1) == known);
    CHECK(known->described->tensors[0].shape == Shape{5});
    CHECK(known->fingerprint == fingerprint(encode(allreduce("a", 5))));
    CHECK(names.with_id(2) == nullptr);
    CHECK(names.retired_meaning(1) == nullptr);
    CHECK(names.id_count() == 1);
}

TEST_CASE("an id leads to the row that has it, also in a copy of the table") {
    std::optional<NameTable> names(std::in_place, Ranks{});
    auto& known = names->row("a"sv);
    names->use(known, 1, share(allreduce("a")), 1);
    names->use(known, 2, share(allreduce("a")), 2);
    CHECK(names->with_id(1) == nullptr);
    CHECK(names->with_id(2) == &known);
    CHECK_THROWS_AS(names->retire({"a", 1}, 3), Error);
    const NameTable copy(*names);
    names.reset();
    REQUIRE(copy.with_id(2) != nullptr);
    CHECK(copy.with_id(2) == copy.find("a"sv));
}

TEST_CASE("a name has a row while something is known of it") {
    NameTable names(Ranks{});
    auto& known = names.row("a"sv);
    CHECK(&names.row(Name("a")) == &known);
    known.tally.add(share(allreduce("a")), Ranks{0});
    names.let_go(known);
    CHECK(names.find("a"sv) == &known);
    known.tally.reset();
    known.submission.emplace();
    names.let_go(known);
    CHECK(names.find("a"sv) == &known);
    known.submission.reset();
    names.let_go(known);
    CHECK(names.find("a"sv) == nullptr);
}

TEST_CASE("a retired id is understood until all children have applied its eviction") {
    NameTable names(Ranks{1, 2});
    names.use(names.row("a"sv), 1, share(allreduce("a")), 1);
    names.retire({"a", 1}, 2);
    CHECK(names.find("a"sv) == nullptr);
    CHECK(names.with_id(1) == nullptr);
    REQUIRE(names.retired_meaning(1) != nullptr);
    CHECK(names.retired_meaning(1)->name == "a");
    names.child_has_applied(1, 2);
    names.child_has_applied(2, 1);
    CHECK(names.retired_count() == 1);
    names.child_has_applied(2, 2);
    CHECK(names.retired_count() == 0);
    CHECK(names.retired_meaning(1) == nullptr);
    CHECK_THROWS_AS(names.retire({"a", 1}, 3), Error);

    NameTable without_children(Ranks{});
    without_children.use(without_children.row("a"sv), 1, share(allreduce("a")), 1);
    without_children.retire({"a", 1}, 2);
    CHECK(without_children.retired_count() == 0);
}

TEST_CASE("the names used longest ago are the surplus, but none whose round is under way") {
    NameTable names(Ranks{});
    std::uint64_t position = 0;
    for (const auto* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "a"}) {
        auto& known = names.row(Name(name));
        names.use(known, known.id == 0 ? names.new_id() : known.id, share(allreduce(name)),
                  ++position);
    }
    CHECK(names_of(names.surplus(9)).empty());
    CHECK(names_of(names.surplus(8)) == "bc");  // one too many, and an eighth
    const auto begin_round = [&](KnownName& known) { known.tally.add(known.described, Ranks{0}); };
    begin_round(names.row("b"sv));
    CHECK(names_of(names.surplus(8)) == "cd");
    names.for_each([&](KnownName& known) {
        if (known.name != "h" && !known.tally.is_under_way()) begin_round(known);
    });
    CHECK(names_of(names.surplus(0)) == "h");
}

// --- attendance ----------------------------------------------------------------------------------

TEST_CASE("attendance accounts for ranks that have shut down or joined") {
    Attendance attendance({0, 1, 2}, {});
    CHECK(attendance.shut_down(1, "why"));
    CHECK_FALSE(attendance.shut_down(1, "again"));
    CHECK(attendance.join(2, "end"));
    CHECK_FALSE(attendance.join(2, "end"));
    CHECK(attendance.accounts_for(Ranks{1, 2}));
    CHECK_FALSE(attendance.accounts_for(Ranks{0, 1}));
    CHECK(attendance.has_joined(2));
    CHECK_FALSE(attendance.has_joined(1));
    CHECK(attendance.most_absent() == 2);
    CHECK_THROWS_AS(attendance.join(0, "another name"), Error);
    attendance.end_join();
    CHECK_FALSE(attendance.accounts_for(Ranks{2}));

    CHECK_FALSE(attendance.have_all_shut_down());
    attendance.shut_down(0, "");
    attendance.shut_down(2, "");
    CHECK(attendance.have_all_shut_down());
    CHECK(attendance.shutdowns_text(Ranks{0, 1}) ==
          "rank 0 has shut down, rank 1 has shut down (why)");
    CHECK_THROWS_AS(attendance.shutdowns_text(Ranks{3}), Error);
}

TEST_CASE("texts of attendance name world ranks and the process set") {
    Attendance attendance({0, 1}, GroupRanks({4, 7}));
    attendance.shut_down(1, "why");
    CHECK(attendance.shutdowns_text(Ranks{1}) == "rank 7 has left process set 4,7 (why)");
}

TEST_CASE("a join ends once nobody is left who has not joined or shut down") {
    Attendance attendance({0, 1, 2}, {});
    CHECK_FALSE(attendance.join_entry());
    attendance.join(2, "end");
    attendance.join(0, "end");
    CHECK_FALSE(attendance.join_entry());
    auto all = attendance;
    all.join(1, "end");
    CHECK((*all.join_entry() == LogEntry{.kind = Kind::join, .items = {{"end"}}, .ranks = {1}}));

    attendance.shut_down(2, "");  // which counts twice, but is not rank 1
    CHECK_FALSE(attendance.join_entry());
    attendance.shut_down(1, "why");
    const auto failed = attendance.join_entry();
    REQUIRE(failed);
    CHECK(failed->code == ErrorCode::departed);
    CHECK(failed->text == "rank 1 has shut down (why); join 'end' waits for it");
    CHECK(failed->ranks == Ranks{1});
}

// --- rounds --------------------------------------------------------------------------------------

TEST_CASE("a tally groups the ranks that have submitted the same") {
    Tally tally;
    tally.add(share(allreduce("a", 4)), Ranks{3, 0});
    tally.add(share(allreduce("a", 5)), Ranks{1});
    tally.add(share(allreduce("a", 4)), Ranks{5});
    CHECK(tally.arrived == 4);
    REQUIRE(tally.groups.size() == 2);
    CHECK(tally.groups[0].ranks == Ranks{3, 0, 5});
    CHECK(tally.missing_from(Ranks{0, 1, 2, 3, 4, 5}) == Ranks{2, 4});

    tally.reset();
    CHECK_FALSE(tally.is_under_way());
    tally.add(share(allreduce("a", 5)), Ranks{2});
    REQUIRE(tally.groups.size() == 1);
    CHECK(tally.groups[0].description->tensors[0].shape == Shape{5});
    CHECK(tally.groups[0].ranks == Ranks{2});
}

TEST_CASE("a complete round fails for the first reason that there is") {
    const auto code_of = [](const Tally& tally, const Ranks& missing,
                            const Attendance& attendance) {
        const auto failure = failure_of("a", tally, missing, attendance, {});
        return failure ? std::string(name_of(failure->code)) : "none";
    };
    Attendance joined({0, 1, 2}, {});
    joined.join(2, "end");
    auto shut_down = joined;
    shut_down.end_join();
    shut_down.shut_down(2, "");

    Tally tally;
    tally.add(share(allreduce("a", 4)), Ranks{0, 1});
    CHECK(code_of(tally, {2}, joined) == "none");
    CHECK(code_of(tally, {2}, shut_down) == "departed");
    auto differing = tally;
    differing.add(share(allreduce("a", 5)), Ranks{2});
    CHECK(code_of(differing, {}, joined) == "mismatch");
    auto discarding = allreduce("a", 4);
    discarding.discarded = "bad batch";
    differing.add(share(discarding), Ranks{2});
    CHECK(code_of(differing, {}, joined) == "discarded");

    Tally exchange;
    exchange.add(share({.operation = OperationKind::all_to_all, .tensors = {{"b"}}}), Ranks{0, 1});
    const auto failure = failure_of("b", exchange, Ranks{2}, joined, {});
    REQUIRE(failure);
    CHECK(failure->text == "all_to_all 'b': it needs every rank, and rank 2 has joined");
}

// --- fusion --------------------------------------------------------------------------------------

namespace {

/// "ab c": a and b share an entry.
std::string fused(std::span<const ReadyRequest> ready, const FusionLimits& limits) {
    std::string text;
    while (!ready.empty()) {
        const auto entry = ready.first(count_fused(ready, limits));
        ready = ready.subspan(entry.size());
        if (!text.empty()) text += ' ';
        for (const auto& request : entry) text += request.name.text();
    }
    return text;
}

}  // namespace

TEST_CASE("neighbours are fused if they do the same, as far as the limits go") {
    std::vector<ReadyRequest> ready;
    for (const auto* name : {"a", "b", "c", "d"})
        ready.push_back({.name = name, .description = share(allreduce(name, 4))});  // 16 bytes each
    const FusionLimits wide{.tensor_bytes = 1000, .entry_bytes = 1000};
    CHECK(fused(ready, wide) == "abcd");
    CHECK(fused(ready, {.tensor_bytes = 48, .entry_bytes = 1000}) == "abc d");
    CHECK(fused(ready, {.tensor_bytes = 47, .entry_bytes = 1000}) == "ab cd");
    CHECK(fused(ready, {.tensor_bytes = 0, .entry_bytes = 1000}) == "a b c d");
    CHECK(fused(ready, {.tensor_bytes = 1000, .entry_bytes = 21}) == "a b c d");
    CHECK(fused(ready, {.tensor_bytes = 1000, .entry_bytes = 22}) == "ab cd");

    ready[2].absent = {3};
    CHECK(fused(ready, wide) == "ab c d");
    ready[3].absent = {3};
    CHECK(fused(ready, wide) == "ab cd");
    auto scaled = allreduce("b");
    scaled.prescale = 0.5;
    ready[1].description = share(scaled);
    CHECK(fused(ready, wide) == "a b cd");
}

TEST_CASE("a name or description that was made before is shared") {
    RequestCache cache;
    const Description sum, scaled{.postscale = 0.5};
    const TensorDescription four{.shape = {4}}, five{.shape = {5}};
    const auto first = cache.get("a", sum, four);
    CHECK(first.second->tensors == std::vector{four});
    CHECK(&cache.get("a", sum, four).first.text() == &first.first.text());
    CHECK(cache.get("b", sum, four).first == Name("b"));
    CHECK(cache.get("b", sum, four).second == first.second);
    CHECK(cache.get("", sum, four).first == Name());
    CHECK(cache.get("a", sum, five).second->tensors == std::vector{five});
    CHECK(cache.get("a", scaled, four).second->postscale == 0.5);
    CHECK(cache.get("a", sum, four).second->postscale == 1);
}

TEST_CASE("all names and descriptions of a model are known in its next step") {
    RequestCache cache;
    const auto step = [&] {
        std::vector<std::pair<Name, SharedDescription>> identities;
        for (std::int64_t i = 0; i < 1000; ++i)
            for (const auto op : {ReduceOp::sum, ReduceOp::average})
                identities.push_back(cache.get(std::to_string(i), {.op = op}, {.shape = {i, 64}}));
        return identities;
    };
    const auto first = step(), second = step();
    for (std::size_t i = 0; i < first.size(); ++i) {
        REQUIRE(&first[i].first.text() == &second[i].first.text());
        REQUIRE(first[i].second == second[i].second);
    }
}

TEST_CASE("a request is known by its own name and description, however many there are") {
    RequestCache cache;
    for (std::int64_t i = 0; i < 40000; ++i) {
        const auto name = std::to_string(i);
        const auto [known, description] = cache.get(name, {}, {.shape = {i, 64}});
        REQUIRE(known == name);
        REQUIRE(description->tensors.front().shape == Shape{i, 64});
    }
}

// --- the codec of the log ------------------------------------------------------------------------

namespace {

Bytes written(const LogEntry& entry, const NameTable& names) {
    Writer out;
    write_entry(entry, names, out);
    return out.take();
}

}  // namespace

TEST_CASE("entries are read as they were written; an id that is known goes without its name") {
    NameTable names(Ranks{});
    names.use(names.row("known by its id"sv), 7, share(allreduce("known")), 1);
    const std::vector<LogEntry> entries = {
        {.items = {{"known by its id", 7, share(allreduce("known"))},
                   {"new", 8, share(allreduce("new"))}},
         .policy = {.forced = Algorithm::ring, .reproducible = true, .small_bytes = 1 << 20},
         .absent = {2}},
        {.kind = Kind::fail,
         .items = {{"new", 0}},
         .code = ErrorCode::mismatch,
         .text = "text",
         .tensor = "tensor",
         .operation = "operation",
         .ranks = {0, 3}},
        {.kind = Kind::evict, .items = {{"known by its id", 7}}},
        {.kind = Kind::join, .items = {{"end", 0}}, .ranks = {3}},
        {.kind = Kind::all_shut_down},
        {.kind = Kind::quit, .code = ErrorCode::departed, .text = "rank 2 ...", .ranks = {2}}};
    for (const auto& entry : entries) {
        const auto bytes = written(entry, names);
        Reader in(bytes);
        CHECK((read_entry(in, names, 4) == entry));
        CHECK(in.at_end());
        for (std::size_t length = 0; length < bytes.size(); ++length) {
            Reader truncated(std::span<const std::byte>(bytes).first(length));
            CHECK_THROWS_AS(read_entry(truncated, names, 4), Error);
        }
    }
    CHECK(written(entries[2], names).size() == 3);  // kind, count, id
}

TEST_CASE("no entry is read that gives away an id or lacks what its kind needs") {
    NameTable names(Ranks{});
    const auto refused = [&](const LogEntry& entry) {
        const auto bytes = written(entry, NameTable(Ranks{}));  // which knows none: all names go
        Reader in(bytes);
        try {
            read_entry(in, names, 4);
            return false;
        } catch (const Error& error) {
            return error.code() == ErrorCode::wire;
        }
    };
    const LogEntry execution{.items = {{"a", 9}}},
        eviction{.kind = Kind::evict, .items = {{"a", 9}}};
    CHECK_FALSE(refused(execution));
    CHECK(refused(eviction));
    names.use(names.row("a"sv), 7, share(allreduce("a")), 1);
    CHECK(refused(execution));
    for (const auto kind : {Kind::execute, Kind::fail, Kind::join, Kind::quit})
        CHECK(refused({.kind = kind}));
    CHECK(refused({.kind = Kind::quit, .ranks = {0, 1}}));
    CHECK(refused({.kind = Kind::join, .items = {{"end"}}}));
}

TEST_CASE("an outbox begins another message behind a long one") {
    Outbox outbox;
    const std::string text(Outbox::full_message_bytes + 1, 'x');
    const auto add = [&](int to, std::uint64_t position, std::string_view words) {
        outbox.add(to, position, [&](Writer& out) { out.string(words); });
    };
    add(1, 5, text);
    add(0, 6, "to another");
    add(1, 7, "second");
    add(1, 8, "third");
    const auto messages = outbox.take();
    REQUIRE(messages.size() == 3);
    CHECK(messages[0].to == 1);
    CHECK(messages[2].to == 1);
    Reader first(messages[0].bytes), last(messages[2].bytes);
    CHECK(first.number() == 5);
    CHECK(last.number() == 7);
    CHECK(last.string() == "second");
    CHECK(last.string() == "third");
    CHECK(outbox.take().empty());
}

TEST_CASE("an outbox holds a record whole or not at all") {
    Outbox outbox;
    const auto fail_half_way = [](Writer& out) {
        out.string("half of it");
        throw std::bad_alloc();
    };
    CHECK_THROWS_AS(outbox.add(1, 5, fail_half_way), std::bad_alloc);
    CHECK(outbox.take().empty());
    outbox.add(1, 6, [](Writer& out) { out.string("first"); });
    CHECK_THROWS_AS(outbox.add(1, 7, fail_half_way), std::bad_alloc);
    outbox.add(1, 8, [](Writer& out) { out.string("second"); });
    const auto messages = outbox.take();
    REQUIRE(messages.size() == 1);
    Reader in(messages[0].bytes);
    CHECK(in.number() == 6);
    CHECK(in.string() == "first");
    CHECK(in.string() == "second");
    CHECK(in.at_end());
}

// --- matching of point to point ------------------------------------------------------------------

namespace {

/// "1 2!": the operations in the order in which they were decided; "!" those that failed.
std::string decided(Matcher& matcher) {
    std::string text;
    for (const auto& decision : matcher.take_decisions())
        text += (text.empty() ? "" : " ") + std::to_string(decision.operation) +
                (decision.error ? "!" : "");
    return text;
}

/// Delivers what is for the other of two ranks.
void deliver(Matcher& from, int rank, Matcher& to) {
    for (const auto& message : from.take_messages())
        if (message.to != rank) to.receive(rank, message.bytes);
}

}  // namespace

TEST_CASE("the k-th send meets the k-th receive of its route, whatever came between") {
    Matcher left(0, 2, {}), right(1, 2, {});
    const Route to_right{.peer = 1, .tag = 3}, from_left{.peer = 0, .tag = 3, .sending = false};
    CHECK(left.post(to_right, {.shape = {1}}) == 1);
    CHECK(left.post({.peer = 1, .tag = 4}, {.shape = {9}}) == 2);
    CHECK(left.post(to_right, {.shape = {2}}) == 3);
    deliver(left, 0, right);
    CHECK(right.post(from_left, {.shape = {1}}) == 1);
    CHECK(right.post(from_left, {.shape = {3}}) == 2);
    CHECK(decided(right) == "1 2!");
    deliver(right, 1, left);
    CHECK(decided(left) == "1 3!");
    right.shut_down("", false);
    deliver(right, 1, left);
    CHECK(decided(left) == "2!");
}

TEST_CASE("what a rank announced before it shut down is matched, all else fails with its reason") {
    Matcher left(0, 2, {}), right(1, 2, {});
    right.post({.peer = 0, .sending = true}, {.shape = {1}});
    left.post({.peer = 1, .sending = false}, {.shape = {1}});
    left.post({.peer = 1, .sending = false}, {.shape = {1}});
    right.shut_down("why", false);
    CHECK(decided(left).empty());
    deliver(right, 1, left);
    const auto decisions = left.take_decisions();
    REQUIRE(decisions.size() == 2);
    CHECK_FALSE(decisions[0].error);
    CHECK_THROWS_WITH(std::rethrow_exception(decisions[1].error),
                      "rank 1 has shut down (why); recv with it (tag 0) was never matched");
    left.post({.peer = 1}, {});
    CHECK(decided(left) == "3!");
}

TEST_CASE("all have shut down when this rank has heard it from each, itself among them") {
    Matcher left(0, 2, GroupRanks({4, 7})), right(1, 2, GroupRanks({4, 7}));
    left.post({.peer = 0, .tag = 5}, {});
    left.shut_down(std::string(max_reason_bytes + 1, 'x'), false);
    right.shut_down("", true);
    deliver(right, 1, left);
    CHECK_FALSE(left.have_all_shut_down());
    CHECK(decided(left).empty());
    for (const auto& message : left.take_messages())
        (message.to == 0 ? left : right).receive(0, message.bytes);
    CHECK(left.have_all_shut_down());
    CHECK_FALSE(right.have_all_shut_down());  // by what it has heard
    const auto decisions = left.take_decisions();
    REQUIRE(decisions.size() == 1);
    CHECK_THROWS_WITH(std::rethrow_exception(decisions.front().error),
                      "rank 4 has left process set 4,7 (" + std::string(max_reason_bytes, 'x') +
                          "); send with it (tag 5) was never matched");
}

}  // namespace guozhuang::protocol
