#include "wire/group/control_channel.hpp"

#include <algorithm>
#include <guozhuang/error.hpp>

#include "support/runner/catch.hpp"
#include "wire/inproc/inproc_transport.hpp"

using namespace guozhuang;
using namespace guozhuang::wire;

namespace {

constexpr std::uint16_t context = 3;

std::vector<std::byte> bytes_of(std::string_view text) {
    std::vector<std::byte> bytes(text.size());
    std::transform(text.begin(), text.end(), bytes.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    return bytes;
}

/// Three ranks; the set is {0, 2}. The caller acts for all of them: short control messages arrive
/// at once.
struct Job {
    InprocHub hub{3};
    std::unique_ptr<Transport> ranks[3] = {hub.transport(0), hub.transport(1), hub.transport(2)};
    ControlChannel sender{*ranks[2], {context}, {0, 2}};
    ControlChannel receiver{*ranks[0], {context}, {0, 2}};

    /// The bytes that a message has on the way.
    std::vector<std::byte> captured(std::string_view text) {
        sender.send(0, bytes_of(text));
        return ranks[0]->poll({context, Lane::control, 0})->bytes;
    }

    /// The receiver's verdict on raw bytes from a rank.
    std::string verdict(int from, std::span<const std::byte> raw) {
        ranks[from]->send(0, {context, Lane::control, 0}, raw);
        try {
            receiver.poll();
        } catch (const Error& error) {
            CHECK(error.code() == ErrorCode::wire);
            CHECK(error.ranks() == std::vector{from});
            return error.what();
        }
        return "no objection";
    }
};

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("control messages arrive in order, from positions of the set") {
    Job job;
    CHECK(job.sender.rank() == 1);
    CHECK(job.receiver.rank() == 0);
    CHECK(job.receiver.size() == 2);
    CHECK_FALSE(job.receiver.poll().has_value());
    for (const auto* text : {"first", "", "third"}) job.sender.send(0, bytes_of(text));
    CHECK(job.sender.flushed());
    for (const auto* text : {"first", "", "third"}) {
        const auto message = job.receiver.poll();
        REQUIRE(message.has_value());
        CHECK(message->from == 1);
        CHECK(message->bytes == bytes_of(text));
    }
    job.receiver.send(0, bytes_of("to myself"));
    CHECK(job.receiver.poll()->from == 0);
}

TEST_CASE("a control message that was changed on the way is refused, whatever bit it is") {
    Job job;
    const auto whole = job.captured("payload");
    CHECK(job.verdict(2, whole) == "no objection");
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
        auto changed = whole;
        changed[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        CHECK(job.verdict(2, changed) != "no objection");
    }
}

TEST_CASE("cut, foreign and strange control messages are refused by the name of their fault") {
    Job job;
    const auto whole = job.captured("payload");
    CHECK_THAT(job.verdict(2, std::span(whole).first(5)), Contains("too short"));
    CHECK_THAT(job.verdict(2, std::span(whole).first(whole.size() - 1)),
               Contains("says 7 bytes and has 6"));
    CHECK_THAT(job.verdict(2, bytes_of("a text that is no message at all")),
               Contains("not one of this library"));
    auto other_version = whole;
    other_version[4] = std::byte{99};
    CHECK_THAT(job.verdict(2, other_version), Contains("version 99"));
    auto other_context = whole;
    other_context[6] ^= std::byte{1};
    CHECK_THAT(job.verdict(2, other_context), Contains("of another process set"));
    CHECK_THAT(job.verdict(1, whole), Contains("does not belong"));
}

TEST_CASE("what an earlier set of the same context has left behind is dropped") {
    Job job;
    ControlChannel later{*job.ranks[2], {context, 7}, {0, 2}};
    for (const auto* text : {"stale", "stale too"}) job.receiver.send(1, bytes_of(text));
    CHECK_FALSE(later.poll().has_value());
    ControlChannel peer{*job.ranks[0], {context, 7}, {0, 2}};
    job.receiver.send(1, bytes_of("stale"));
    peer.send(1, bytes_of("fresh"));
    CHECK(later.poll()->bytes == bytes_of("fresh"));
    CHECK_FALSE(later.poll().has_value());
    peer.send(1, bytes_of("of a set that does not exist yet"));
    CHECK_THROWS_WITH(job.sender.poll(), Contains("rank 0") && Contains("does not exist yet"));
}

TEST_CASE("a control message beyond the limit is refused before it is sent") {
    Job job;
    std::vector<std::byte> huge((std::size_t{64} << 20) + 1);
    CHECK_THROWS_AS(job.sender.send(0, huge), Error);
    huge.pop_back();
    job.sender.send(0, std::move(huge));
    auto message = job.receiver.poll();
    while (!message && !job.sender.flushed()) message = job.receiver.poll();
    if (!message) message = job.receiver.poll();
    CHECK(message->bytes.size() == std::size_t{64} << 20);
}
