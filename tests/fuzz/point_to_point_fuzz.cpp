// Messages from a peer about sends and receives, to a rank that has posted some itself.
#include "engine/point_to_point.hpp"

#include "fuzz/fuzz.hpp"
#include "wire/group/control_channel.hpp"
#include "wire/group/mail_channel.hpp"
#include "wire/inproc/inproc_transport.hpp"

namespace guozhuang::fuzz {

using namespace engine;
using namespace protocol;

namespace {

struct Rank {
    std::vector<float> memory = std::vector<float>(8);
    wire::InprocHub hub{2};
    std::unique_ptr<wire::Transport> transport = hub.transport(0);
    wire::ControlChannel control{*transport, {}, {0, 1}};
    wire::MailChannel mail{*transport, 0, {0, 1}};
    PointToPoint point_to_point{control, mail};
    std::vector<std::shared_ptr<Pending>> posted;

    Rank() {
        for (const bool sending : {false, true})
            for (const std::int64_t count : {0, 3, 8})
                post({.peer = 1, .tag = 7, .sending = sending}, count);
    }
    ~Rank() { hub.abort(); }
    void post(const Route& route, std::int64_t count) {
        Request request{.kind = Request::Kind::point_to_point,
                        .name = "message",
                        .route = route,
                        .tensors = {TensorView(memory.data(), DType::f32, {count})}};
        posted.push_back(std::make_shared<Pending>(std::move(request), nullptr));
        point_to_point.post(posted.back());
    }
    void go_on() {
        point_to_point.advance();
        point_to_point.take_messages();
        for (const auto& outcome : point_to_point.take_outcomes()) {
            const bool clean =
                !outcome.error || refused({ErrorCode::mismatch, ErrorCode::departed},
                                          [&] { std::rethrow_exception(outcome.error); });
            require(clean, "a send or receive fails with an error of its kind");
        }
    }
};

Seed announcement(std::uint64_t tag, bool sending, std::int64_t count) {
    Writer out;
    out.number(0);
    out.number(tag);
    out.number(sending ? 1 : 0);
    out.enumerator(DType::f32);
    out.number(1);
    out.signed_number(count);
    return out.take();
}

Seed shutdown(bool at_once) {
    Writer out;
    out.number(1);
    out.number(at_once ? 1 : 0);
    out.string("why");
    return out.take();
}

}  // namespace

void decode(Input input) {
    Rank rank;
    bool over = false;
    while (!input.empty() && !over) {
        over = refused({ErrorCode::wire},
                       [&] { rank.point_to_point.receive(1, next_message(input).bytes); });
        rank.go_on();
    }
}

std::vector<Seed> seeds() {
    std::vector<Seed> all;
    for (const bool at_once : {false, true}) {
        Seed seed;
        for (const auto& message :
             {announcement(7, true, 0), announcement(7, true, 3), announcement(7, false, 0),
              announcement(300, true, 5), announcement(7, false, 8), shutdown(at_once)})
            append_message(seed, 0, message);
        all.push_back(std::move(seed));
    }
    return all;
}

}  // namespace guozhuang::fuzz
