// The nouns that a negotiation is made of: what only each by itself shows. Their rules are those
// that negotiator_walk_test.cpp, negotiator_test.cpp, join_test.cpp and point_to_point_test.cpp
// hold them to.
#include <guozhuang/error.hpp>
#include <new>
#include <optional>

#include "protocol/attendance.hpp"
#include "protocol/log_codec.hpp"
#include "protocol/matcher.hpp"
#include "protocol/name_table.hpp"
#include "protocol/outbox.hpp"
#include "protocol/request_cache.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::protocol {
namespace {

using namespace std::literals;
using Kind = LogEntry::Kind;
using Ranks = std::vector<int>;

Description allreduce(const std::string& name, std::int64_t count = 4) {
    return {.tensors = {{name, DType::f32, {count}}}};
}

std::string names_of(const std::vector<Item>& items) {
    std::string text;
    for (const auto& item : items) text += item.name.text();
    return text;
}

}  // namespace

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

TEST_CASE("a rank shuts down and joins once") {
    Attendance attendance({0, 1, 2}, {});
    CHECK(attendance.shut_down(1, "why"));
    CHECK_FALSE(attendance.shut_down(1, "again"));
    CHECK(attendance.join(2, "end"));
    CHECK_FALSE(attendance.join(2, "end"));
    CHECK_THROWS_AS(attendance.join(0, "another name"), Error);
    CHECK(attendance.shutdowns_text(Ranks{1}) == "rank 1 has shut down (why)");
    CHECK_THROWS_AS(attendance.shutdowns_text(Ranks{0}), Error);
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

TEST_CASE("all have shut down when this rank has heard it from each, itself among them") {
    Matcher left(0, 2, GroupRanks({4, 7})), right(1, 2, GroupRanks({4, 7}));
    left.post({.peer = 0, .tag = 5}, {});
    left.shut_down(std::string(max_reason_bytes + 1, 'x'), false);
    right.shut_down("", true);
    for (const auto& message : right.take_messages())
        if (message.to == 0) left.receive(1, message.bytes);
    CHECK_FALSE(left.have_all_shut_down());
    CHECK(left.take_decisions().empty());
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
