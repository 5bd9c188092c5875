// How ranks end a session together: what each must have heard, and from whom.
#include <atomic>
#include <deque>
#include <guozhuang/error.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/fakes/engine_rank.hpp"
#include "support/fakes/forwarding_transport.hpp"
#include "support/runner/catch.hpp"

namespace guozhuang::test {
namespace {

using namespace std::chrono_literals;

/// Holds back the control messages of one rank until they are let go, which comes after what the
/// other ranks have sent by then.
class LateMessages final : public ForwardingTransport {
public:
    LateMessages(std::unique_ptr<wire::Transport> inner, int from)
        : ForwardingTransport(std::move(inner)), from_(from) {}
    std::optional<Message> poll(wire::Tag tag) override {
        while (auto message = ForwardingTransport::poll(tag)) {
            if (message->from != from_) return message;
            held_.push_back(std::move(*message));
        }
        if (!are_let_go_ || held_.empty()) return std::nullopt;
        auto first = std::move(held_.front());
        held_.pop_front();
        return first;
    }
    void let_go() {
        are_let_go_ = true;
        base::ring(doorbell());
    }

private:
    const int from_;
    std::deque<Message> held_;  ///< by the thread that drives
    std::atomic<bool> are_let_go_{false};
};

/// "code ranks text" of what the operation fails with; "none" if it does not.
std::string end_of(const Handle& handle) {
    try {
        handle.wait();
    } catch (const Error& error) {
        return std::string(name_of(error.code())) + " " + std::to_string(error.ranks().front()) +
               " " + error.what();
    }
    return "none";
}

const auto nothing = [](const engine::Bundle&) {};

}  // namespace

TEST_CASE("what a rank announced is matched, though its words come after the end of the log") {
    wire::InprocHub hub(3);
    const auto late = std::make_shared<LateMessages>(hub.transport(2), 1);
    EngineRank root(hub.transport(0), nothing), sender(hub.transport(1), nothing),
        receiver(late, nothing);
    const auto sent = sender.submit(protocol::Route{.peer = 2, .tag = 1, .sending = true});
    const auto received = receiver.submit(protocol::Route{.peer = 1, .tag = 1, .sending = false});
    const auto lonely = receiver.submit(protocol::Route{.peer = 1, .tag = 2, .sending = false});
    std::vector<std::thread> closers;
    for (auto* rank : {&sender, &receiver})
        closers.emplace_back([rank] { rank->engine().close("the end"); });
    root.engine().close("");  // it hears from all, so the log is complete
    CHECK_FALSE(received.wait_for(20ms));
    CHECK_FALSE(lonely.done());
    late->let_go();
    for (auto& closer : closers) closer.join();
    CHECK(end_of(sent) == "none");
    CHECK(end_of(received) == "none");
    CHECK(end_of(lonely) ==
          "departed 1 rank 1 has shut down (the end); recv with it (tag 2) was never matched");
}

TEST_CASE("a rank closes when it has heard of each other rank's shutdown from that rank itself") {
    wire::InprocHub hub(3);
    const auto late = std::make_shared<LateMessages>(hub.transport(2), 1);
    EngineRank root(hub.transport(0), nothing), other(hub.transport(1), nothing),
        waits(late, nothing);
    std::atomic<bool> is_closed = false;
    std::thread closer([&] {
        waits.engine().close("");
        is_closed = true;
    });
    std::thread other_closer([&] { other.engine().close(""); });
    root.engine().close("");
    std::this_thread::sleep_for(20ms);
    CHECK_FALSE(is_closed);
    late->let_go();
    closer.join();
    other_closer.join();
}

TEST_CASE("after a rank has quit the others tell each other that they close") {
    wire::InprocHub hub(3);
    EngineRank first(hub.transport(0), nothing), second(hub.transport(1), nothing),
        quits(hub.transport(2), nothing);
    const auto waits = second.submit(protocol::Route{.peer = 0, .tag = 3, .sending = false});
    quits.engine().quit("early");
    std::thread quitter([&] { quits.engine().drain_before_exit(base::Clock::now() + 20s); });
    for (auto* rank : {&first, &second})
        rank->engine().drive_until([&] { return rank->engine().somebody_quit(); },
                                   base::no_deadline);
    quitter.join();
    CHECK_FALSE(waits.done());
    first.engine().close("me too");
    second.engine().close("");
    CHECK(end_of(waits) ==
          "departed 0 rank 0 has shut down (me too); recv with it (tag 3) was never matched");
}

TEST_CASE("after a rank has quit the others close without it, even if its end has been noticed") {
    wire::InprocHub hub(2);
    const EngineOptions by_hand{.own_thread = false};
    EngineRank stays(hub.transport(0), nothing, by_hand), quits(hub.transport(1), nothing, by_hand);
    quits.engine().quit("early");
    std::thread quitter([&] { quits.engine().drain_before_exit(base::Clock::now() + 20s); });
    stays.engine().drive_until([&] { return stays.engine().somebody_quit(); }, base::no_deadline);
    quitter.join();
    base::abort(stays.doorbell());
    CHECK_NOTHROW(stays.engine().close(""));
}

}  // namespace guozhuang::test
