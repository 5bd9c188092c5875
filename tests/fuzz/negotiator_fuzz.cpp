// Messages to a negotiator, from its parent and its children, in the middle of what it may be
// about. An input chooses the state and the rank; the messages follow, each with its sender.
#include <functional>

#include "fuzz/fuzz.hpp"
#include "support/fakes/negotiation.hpp"

namespace guozhuang::fuzz {

using protocol::Negotiator;
using test::Negotiation;
using test::tensor;

namespace {

constexpr int ranks = 4;  // the root has the children 1 and 2, rank 1 has the child 3

Negotiation all_have_submitted(const std::function<void(Negotiation&)>& before = {},
                               std::size_t max_ids = 100) {
    Negotiation job(ranks, {.degree = 2, .max_ids = max_ids});
    for (const auto* name : {"a", "b"}) job.submit_everywhere(tensor(name));
    job.settle();
    if (before) before(job);
    for (const auto* name : {"b", "c"}) job.submit_everywhere(tensor(name));
    for (int rank = 0; rank < ranks; ++rank) job.flush(rank);
    return job;
}

/// On two hosts, with tensors that travel with their requests, of which rank 2 sends another.
Negotiation all_have_contributed() {
    Negotiation job(ranks, {.degree = 2, .policy = {.small_bytes = 64}, .host_of = {0, 0, 1, 1}});
    for (int round = 0; round < 2; ++round) {
        job.settle();
        for (int rank = 0; rank < ranks; ++rank)
            job.submit(rank, "a", tensor("a"), true,
                       std::vector(rank == 2 && round == 1 ? 8U : 4U, std::byte{1}));
    }
    for (int rank = 0; rank < ranks; ++rank) job.flush(rank);
    return job;
}

/// Each with messages on its way.
const std::vector<Negotiation>& states() {
    static const std::vector<Negotiation> all = {
        all_have_submitted(),
        all_have_submitted({}, 1),
        all_have_submitted([](Negotiation& job) {
            for (int rank = 0; rank < ranks; ++rank)
                job.submit(rank, tensor("shapes differ", {1 + rank / 2}));
        }),
        all_have_submitted([](Negotiation& job) {
            job.submit(1, tensor("waits for 3 and 2"));
            job.shut_down(3, "why");
            job.join(2);
        }),
        all_have_submitted([](Negotiation& job) {
            for (int rank = 0; rank < ranks - 1; ++rank) job.join(rank);
            job.flush(3);
            job.join(3);
        }),
        all_have_submitted([](Negotiation& job) { job.quit(3, "an exception"); }),
        all_have_submitted([](Negotiation& job) { job.shut_down_everywhere(); }),
        all_have_contributed(),
    };
    return all;
}

void drop_entries(Negotiator& negotiator) {
    std::vector<protocol::LogEntry> entries;
    negotiator.take_entries(entries);
}

void hear(Negotiator& negotiator, const Message& message) {
    negotiator.receive(static_cast<int>(message.choice % ranks), message.bytes);
    negotiator.take_messages();
    drop_entries(negotiator);
}

}  // namespace

void decode(Input input) {
    const auto state = choice(input) % states().size();
    auto job = states()[state];
    auto& negotiator = job.at(static_cast<int>(choice(input) % ranks));
    bool over = false;
    while (!input.empty() && !over)
        over = refused({ErrorCode::wire}, [&] { hear(negotiator, next_message(input)); });
    // The job ends, but what is there is still taken.
    refused({ErrorCode::wire}, [&] { negotiator.take_messages(); });
    drop_entries(negotiator);
}

/// For each state and rank, all that the rank hears from there on.
std::vector<Seed> seeds() {
    std::vector<Seed> all;
    for (std::size_t state = 0; state < states().size(); ++state) {
        auto job = states()[state];
        std::vector<Seed> heard;
        for (int rank = 0; rank < ranks; ++rank)
            heard.push_back({static_cast<std::byte>(state), static_cast<std::byte>(rank)});
        while (!job.links().empty()) {
            const auto& [link, messages] = *job.links().begin();
            const auto [from, to] = link;
            append_message(heard[static_cast<std::size_t>(to)], static_cast<unsigned>(from),
                           messages.front());
            job.deliver({from, to});
            job.flush(to);
        }
        all.insert(all.end(), heard.begin(), heard.end());
    }
    return all;
}

}  // namespace guozhuang::fuzz
