// The first messages between ranks. An input chooses whether rank 0 judges two messages, each from
// rank 1 or 2, or rank 1 receives rank 0's judgement.
#include "runtime/handshake.hpp"

#include <guozhuang/version.hpp>

#include "fuzz/fuzz.hpp"
#include "protocol/codec.hpp"
#include "wire/group/control_channel.hpp"
#include "wire/inproc/inproc_transport.hpp"

namespace guozhuang::fuzz {

namespace {

constexpr auto context = wire::job_context;
const std::vector<int> everybody = {0, 1, 2};

/// The messages are there before the rank asks for them, so nobody waits.
void send(wire::Transport& from, int to, Input message) {
    wire::ControlChannel(from, {context}, everybody).send(to, {message.begin(), message.end()});
}

Seed facts(const std::vector<std::string>& values) {
    protocol::Writer out;
    for (const auto& value : values) out.string(value);
    return out.take();
}

}  // namespace

void decode(Input input) {
    wire::InprocHub hub(3);
    const std::unique_ptr<wire::Transport> ranks[] = {hub.transport(0), hub.transport(1),
                                                      hub.transport(2)};
    const bool judges = choice(input) % 2 == 0;
    for (int i = 0; i < (judges ? 2 : 1); ++i) {
        const auto message = next_message(input);
        send(*ranks[judges ? 1 + message.choice % 2 : 0], judges ? 0 : 1, message.bytes);
    }
    refused({ErrorCode::wire, ErrorCode::configuration},
            [&] { run_handshake(*ranks[judges ? 0 : 1], {}, "", {"a warning of its own"}); });
}

std::vector<Seed> seeds() {
    std::vector<std::string> values{version()};
    for (const auto& row : base::config_table())
        if (row.scope == base::ConfigScope::rank0_wins) values.push_back(row.print({}));
    auto other_settings = values, warned = values;
    other_settings.back() = "something else";
    warned.emplace_back("a warning");
    std::vector<Seed> all;
    for (const auto& second :
         {facts(values), facts(other_settings), facts(warned), facts({"0.0"})}) {
        Seed seed{std::byte{0}};
        append_message(seed, 0, facts(values));
        append_message(seed, 1, second);
        all.push_back(std::move(seed));
    }
    auto fine = values, senseless = values;
    fine.front() = senseless.front() = "";
    senseless.back() = "something else";
    for (const auto& judgement : {facts(fine), facts(senseless), facts({""}),
                                  facts({"the ranks run different versions"})}) {
        Seed seed{std::byte{1}};
        append_message(seed, 0, judgement);
        all.push_back(std::move(seed));
    }
    return all;
}

}  // namespace guozhuang::fuzz
