// How sends meet receives: two state machines that talk to each other by hand.
#include "engine/point_to_point.hpp"

#include <cstring>
#include <guozhuang/error.hpp>
#include <new>
#include <utility>

#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::engine;
using namespace guozhuang::protocol;

namespace {

struct FixedControl final : Control {
    int own, ranks;
    FixedControl(int rank, int size) : own(rank), ranks(size) {}
    int rank() const noexcept override { return own; }
    int size() const noexcept override { return ranks; }
    void send(int, std::vector<std::byte>) override {}
    std::optional<Message> poll() override { return std::nullopt; }
    bool flushed() override { return true; }
};

/// Payloads that stay where they are: what counts here is which were started, and when they are
/// allowed to end.
struct CountedMail final : Mail {
    std::vector<std::size_t> sent, received;  ///< bytes of each
    bool arrived = true;
    bool fails_to_receive = false;  ///< once
    Ticket send(int, std::uint16_t, std::span<const std::byte> bytes) override {
        sent.push_back(bytes.size());
        return 1;
    }
    Ticket receive(int, std::uint16_t, std::span<std::byte> bytes) override {
        if (std::exchange(fails_to_receive, false)) throw std::bad_alloc();
        received.push_back(bytes.size());
        return 1;
    }
    bool test(Ticket& ticket) override {
        if (arrived) ticket = 0;
        return arrived;
    }
};

/// One rank of two.
struct Side {
    FixedControl control;
    CountedMail mail;
    PointToPoint point_to_point{control, mail};
    std::vector<float> memory = std::vector<float>(100);
    std::vector<std::shared_ptr<Pending>> posted;
    std::vector<std::string> ends;  ///< of each operation, in order: "" or an error

    explicit Side(int rank) : control(rank, 2) {}

    void post(bool sending, std::uint16_t tag, std::int64_t count) {
        Request request{.kind = Request::Kind::point_to_point,
                        .name = "message",
                        .route = {.peer = 1 - control.own, .tag = tag, .sending = sending},
                        .tensors = {TensorView(memory.data(), DType::f32, {count})}};
        posted.push_back(std::make_shared<Pending>(std::move(request), nullptr));
        point_to_point.post(posted.back());
    }
    void collect() {
        point_to_point.advance();
        for (const auto& [pending, error] : point_to_point.take_outcomes()) {
            ends.emplace_back();
            try {
                if (error) std::rethrow_exception(error);
            } catch (const Error& thrown) {
                ends.back() = thrown.what();
            }
        }
    }
};

struct Pair {
    Side left{0}, right{1};

    /// Delivers all messages until there are none.
    void talk() {
        for (bool any = true; any;) {
            any = false;
            for (auto* const side : {&left, &right}) {
                auto& other = side == &left ? right : left;
                for (const auto& message : side->point_to_point.take_messages()) {
                    auto& receiver = message.to == side->control.own ? *side : other;
                    receiver.point_to_point.receive(side->control.own, message.bytes);
                    any = true;
                }
            }
        }
        left.collect();
        right.collect();
    }
};

}  // namespace

TEST_CASE("a send and a receive meet, whichever is first") {
    Pair pair;
    pair.left.post(true, 1, 10);
    pair.talk();
    CHECK(pair.left.ends.empty());
    pair.right.post(false, 2, 10);  // another tag
    pair.talk();
    CHECK(pair.left.ends.empty());
    pair.right.post(false, 1, 10);
    pair.talk();
    pair.left.post(true, 2, 10);
    pair.talk();
    CHECK(pair.left.ends == std::vector<std::string>(2));
    CHECK(pair.right.ends == std::vector<std::string>(2));
    CHECK(pair.right.mail.received == std::vector<std::size_t>{40, 40});
}

TEST_CASE("the k-th send of a route meets its k-th receive, and that of no other tag") {
    Pair pair;
    for (const std::int64_t count : {5, 6}) pair.left.post(true, 0, count);
    pair.left.post(true, 1, 9);
    pair.talk();
    for (const std::int64_t count : {5, 6}) pair.right.post(false, 0, count);
    pair.talk();
    CHECK(pair.left.ends == std::vector<std::string>(2));
    CHECK(pair.right.ends == std::vector<std::string>(2));
}

TEST_CASE("a send or receive ends when its payload has arrived; one without payload needs none") {
    Pair pair;
    pair.right.mail.arrived = false;
    pair.left.post(true, 0, 5);
    pair.right.post(false, 0, 5);
    pair.left.post(true, 0, 0);
    pair.right.post(false, 0, 0);
    pair.talk();
    CHECK(pair.left.ends.size() == 2);
    CHECK(pair.right.ends.size() == 1);
    CHECK(pair.right.mail.received == std::vector<std::size_t>{20});
    pair.right.mail.arrived = true;
    pair.talk();
    CHECK(pair.right.ends.size() == 2);
}

TEST_CASE("no receive overtakes one of its route whose mail has failed") {
    Pair pair;
    pair.right.mail.fails_to_receive = true;
    pair.right.post(false, 0, 5);
    pair.right.post(false, 0, 6);
    pair.left.post(true, 0, 5);
    CHECK_THROWS_AS(pair.talk(), std::bad_alloc);
    pair.left.post(true, 0, 6);
    pair.talk();
    CHECK(pair.right.mail.received == std::vector<std::size_t>{20, 24});
}

TEST_CASE("tensors that differ fail on both sides, alike, and nothing moves") {
    Pair pair;
    pair.left.post(true, 4, 5);
    pair.right.post(false, 4, 6);
    pair.left.post(true, 4, 7);
    pair.right.post(false, 4, 7);
    pair.talk();
    const std::string text =
        "send/recv with tag 4: tensors differ: f32 [5] sent by rank 0; f32 [6] expected by rank 1";
    CHECK(pair.left.ends == std::vector<std::string>{text, ""});
    CHECK(pair.right.ends == std::vector<std::string>{text, ""});
    CHECK(pair.left.mail.sent == std::vector<std::size_t>{28});
}

TEST_CASE("a shutdown fails what was never matched, not what was on its way") {
    Pair pair;
    pair.right.post(true, 1, 3);  // announced before it shuts down
    pair.right.point_to_point.shut_down("", false);
    pair.left.post(false, 1, 3);
    pair.left.post(false, 1, 3);
    pair.talk();
    REQUIRE(pair.left.ends.size() == 2);
    CHECK(std::count(pair.left.ends.begin(), pair.left.ends.end(), "") == 1);
    CHECK(std::count(pair.left.ends.begin(), pair.left.ends.end(),
                     "rank 1 has shut down; recv with it (tag 1) was never matched") == 1);
    pair.left.post(true, 9, 3);  // it is too late for that
    pair.talk();
    CHECK(pair.left.ends.back() == "rank 1 has shut down; send with it (tag 9) was never matched");
    CHECK(pair.right.ends == std::vector<std::string>{""});
}

TEST_CASE("what comes after its peer has left fails, whatever that has announced") {
    Pair pair;
    pair.right.post(true, 1, 3);
    pair.right.point_to_point.shut_down("", true);
    CHECK(pair.right.point_to_point.has_operations());
    pair.talk();
    pair.left.post(false, 1, 3);
    pair.talk();
    CHECK(pair.left.ends ==
          std::vector<std::string>{"rank 1 has shut down; recv with it (tag 1) was never matched"});
    CHECK(pair.left.mail.received.empty());
    CHECK_FALSE(pair.left.point_to_point.has_operations());
}

TEST_CASE("malformed announcements are errors") {
    Pair pair;
    CHECK_THROWS_AS(pair.left.point_to_point.receive(1, {}), Error);
    const std::byte unknown[] = {std::byte{7}};
    CHECK_THROWS_AS(pair.left.point_to_point.receive(1, unknown), Error);
    pair.right.post(true, 1, 3);
    auto bytes = pair.right.point_to_point.take_messages().front().bytes;
    for (std::size_t length = 0; length < bytes.size(); ++length)
        CHECK_THROWS_AS(pair.left.point_to_point.receive(1, std::span(bytes).first(length)), Error);
    bytes.push_back(std::byte{0});
    CHECK_THROWS_AS(pair.left.point_to_point.receive(1, bytes), Error);
}

TEST_CASE(
    "at the end of the job sends and receives are forgotten: nothing becomes of them any more") {
    Pair pair;
    pair.left.mail.arrived = false;
    pair.left.post(true, 1, 3);
    pair.right.post(false, 1, 3);
    pair.left.post(true, 2, 3);
    pair.talk();
    pair.left.point_to_point.abandon();
    pair.left.mail.arrived = true;
    pair.right.post(false, 2, 3);
    pair.talk();
    CHECK(pair.left.ends.empty());
}
