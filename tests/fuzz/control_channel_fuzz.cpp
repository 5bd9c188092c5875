// Bytes as they arrive from a rank. An input chooses the rank, one of the process set or one that
// is not in it.
#include "wire/group/control_channel.hpp"

#include "fuzz/fuzz.hpp"
#include "wire/inproc/inproc_transport.hpp"

namespace guozhuang::fuzz {

using namespace wire;

namespace {

constexpr Tag tag{3, Lane::control, 0};
constexpr std::uint64_t epoch = 7;
const std::vector<int> group_ranks = {0, 2};

struct Job {
    InprocHub hub{3};
    std::unique_ptr<Transport> ranks[3] = {hub.transport(0), hub.transport(1), hub.transport(2)};
    ControlChannel receiver{*ranks[0], {tag.context, epoch}, group_ranks};
};

Seed sent(std::string_view text, std::uint64_t in_epoch) {
    Job job;
    ControlChannel sender(*job.ranks[2], {tag.context, in_epoch}, group_ranks);
    const auto bytes = bytes_of(text);
    sender.send(0, {bytes.begin(), bytes.end()});
    Seed seed{std::byte{2}};
    const auto message = job.ranks[0]->poll(tag)->bytes;
    seed.insert(seed.end(), message.begin(), message.end());
    return seed;
}

}  // namespace

void decode(Input input) {
    static Job job;  // the transport delivers at once, so every input finds it empty
    const auto from = choice(input) % 3;
    auto ticket = job.ranks[from]->send(0, tag, input);
    require(job.ranks[from]->test(ticket), "a control message is sent at once");
    std::optional<engine::Control::Message> message;
    if (refused({ErrorCode::wire}, [&] { message = job.receiver.poll(); }) || !message) return;
    require(from != 1, "only members are heard");
    require(message->from == (from == 0 ? 0 : 1), "a member is known by its position");
    require(message->bytes.size() < input.size() &&
                std::ranges::equal(message->bytes, input.last(message->bytes.size())),
            "a message is what has arrived, without its envelope");
}

std::vector<Seed> seeds() {
    return {sent("", epoch), sent("payload", epoch), sent("of an earlier set", epoch - 1),
            sent("of a later set", epoch + 1)};
}

}  // namespace guozhuang::fuzz
