#include <guozhuang/error.hpp>
#include <iostream>
#include <random>

#include "support/fakes/negotiation.hpp"
#include "support/oracles/referee.hpp"
#include "support/runner/catch.hpp"

// Random histories of a process set in one thread, each drawn from a seed alone. A failure prints
// the seed: with `--rng-seed SEED` that walk is the first one.

namespace guozhuang::test {
namespace {

using protocol::Description;
using NegotiatorOptions = protocol::Negotiator::Options;

/// Random numbers that are the same with every standard library.
class Random {
public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}
    std::size_t below(std::size_t end) { return static_cast<std::size_t>(engine_() % end); }
    bool one_in(std::size_t n) { return below(n) == 0; }
    template <class Range>
    auto pick(const Range& range) {
        return *std::next(std::begin(range), static_cast<std::ptrdiff_t>(below(std::size(range))));
    }

private:
    std::mt19937_64 engine_;
};

/// The variants of a request: each differs from the others in one thing or more.
Description variant(const std::string& name, std::size_t which) {
    auto description = tensor(name);
    switch (which % 11) {
        case 0: break;
        case 1: description.tensors[0].shape = {2, 3}; break;
        case 2: description.tensors[0].dtype = DType::f64; break;
        case 3: description.op = ReduceOp::max; break;
        case 4: description.prescale = 0.5; break;
        case 5: description.device = DeviceKind::cuda; break;
        case 6: description.operation = OperationKind::broadcast; break;
        case 7:
            description = {.operation = OperationKind::broadcast,
                           .root = 1,
                           .tensors = std::move(description.tensors)};
            break;
        case 8:
            description = {
                .group = true,
                .tensors = {{name + ".0", DType::f32, {4}}, {name + ".1", DType::f32, {}}}};
            break;
        case 9: description = {.operation = OperationKind::barrier, .tensors = {}}; break;
        case 10: description = tensor(name, {-1, 2}, OperationKind::all_to_all); break;
    }
    return description;
}

/// Parameters of a random history.
struct Character {
    explicit Character(Random& random) {
        constexpr int degrees[] = {1, 2, 3, 4, 16};
        size = 1 + static_cast<int>(random.below(9));
        const auto hosts = 1 + random.below(4);
        options.degree = random.pick(degrees);
        for (int rank = 0; rank < size && hosts > 1; ++rank)
            options.host_of.push_back(static_cast<int>(random.below(hosts)));
        options.max_ids = 2 + random.below(3);
        options.fusion_bytes = random.one_in(3) ? 1000 : 16 + random.below(40);
        options.policy.segment_bytes = random.below(1000);
        options.policy.small_bytes = 2;
        names = 1 + random.below(6);
        steps = 50 + random.below(400);
        steps_per_shutdown = random.one_in(2) ? 1000000 : 20 + random.below(500);
        steps_per_join = random.one_in(2) ? 1000000 : 10 + random.below(100);
        submissions_per_mismatch = random.one_in(2) ? 1000000 : 3 + random.below(50);
    }

    int size = 1;
    NegotiatorOptions options;
    std::size_t names = 1, steps = 0, steps_per_shutdown = 0, steps_per_join = 0,
                submissions_per_mismatch = 0;
};

/// A random history of a process set. There are so few ids that they are evicted while they are in
/// flight; names come back, descriptions change, ranks disagree, and join or shut down at any time,
/// with requests pending or not; or one quits or dies and ends it all.
class Walk {
public:
    explicit Walk(std::uint64_t seed, bool tracing = false)
        : seed_(seed),
          tracing_(tracing),
          random_(seed),
          character_(random_),
          ranks_(character_.size, character_.options),
          referee_(character_.size, character_.options),
          own_(static_cast<std::size_t>(character_.size)) {}

    void run() {
        steps(character_.steps);
        if (random_.one_in(2)) settle();
        if (const int rank = any_rank(); random_.one_in(4) && !referee_.has_shut_down(rank))
            return quit(rank);
        if (random_.one_in(4)) return die(any_rank());
        while (std::ranges::any_of(all_ranks(),
                                   [&](int rank) { return !referee_.has_shut_down(rank); })) {
            if (random_.one_in(8)) shut_down(any_rank());
            step();
        }
        settle();
        referee_.expect_finished();
        for (const int rank : all_ranks()) {
            const auto left = ranks_.at(rank).holdings();
            Referee::require(
                ranks_.at(rank).finished() && left.rounds == 0 && left.submissions == 0,
                "something is left behind");
        }
    }

    void steps(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) step();
    }

    const Negotiation& ranks() const { return ranks_; }
    std::size_t entries() const { return referee_.log().size(); }
    /// The steps so far, one per line; empty unless tracing.
    const std::string& trace() const { return trace_; }

private:
    /// Counters of a rank: log entries looked at, and numbers for the names that it makes up.
    struct Own {
        std::size_t looked = 0, fresh = 0, unnamed = 0, joins = 0;
    };

    std::ranges::iota_view<int, int> all_ranks() const {
        return std::views::iota(0, character_.size);
    }
    int any_rank() { return random_.pick(all_ranks()); }

    void step() {
        if (random_.one_in(character_.steps_per_shutdown)) shut_down(any_rank());
        if (random_.one_in(character_.steps_per_join)) join(any_rank());
        switch (random_.below(3)) {
            case 0: submit(any_rank()); break;
            case 1: flush(any_rank()); break;
            case 2: deliver(); break;
        }
    }

    void submit(int rank) {
        if (referee_.has_shut_down(rank) || referee_.has_joined(rank)) return;
        auto& own = own_[static_cast<std::size_t>(rank)];
        auto name = std::string(1, static_cast<char>('a' + random_.below(character_.names)));
        bool named = true;
        if (random_.one_in(10)) {
            name = "fresh." + std::to_string(own.fresh++);
        } else if (random_.one_in(10)) {
            const auto joins = referee_.round(rank, "join");
            if (joins != std::exchange(own.joins, joins)) own.unnamed = 0;
            name = "unnamed." + std::to_string(joins) + "." + std::to_string(own.unnamed++);
            named = false;
        }
        if (referee_.pending(rank).contains(name)) return;
        const auto round = referee_.round(rank, name);
        const bool disagree = random_.one_in(character_.submissions_per_mismatch);
        const auto which = std::hash<std::string>()(name) + seed_ + round / 3 +
                           (disagree ? 1 + random_.below(10) : 0);
        note("submit", rank, name + " as variant " + std::to_string(which % 11));
        protocol::Bytes contribution;
        if (!random_.one_in(4))
            contribution = {static_cast<std::byte>(rank),
                            static_cast<std::byte>(random_.below(256))};
        ranks_.submit(rank, name, variant(name, which), named, contribution);
        referee_.submitted(rank, name, named, variant(name, which), contribution);
        look(rank);
    }

    void join(int rank) {
        if (referee_.has_shut_down(rank) || referee_.has_joined(rank)) return;
        note("join", rank, "");
        ranks_.join(rank);
        referee_.joined(rank);
        look(rank);
    }

    void shut_down(int rank) {
        if (referee_.has_shut_down(rank)) return;
        const auto reason = random_.one_in(2) ? "reason " + std::to_string(rank) : "";
        note("shut_down", rank, reason);
        ranks_.shut_down(rank, reason);
        referee_.shut_down(rank, reason);
        look(rank);
    }

    /// A rank quits, and that ends the log, whatever else goes on. The requests that a rank has
    /// pending then are those that it knows to be unresolved.
    void quit(int rank) {
        note("quit", rank, "");
        ranks_.quit(rank, "why");
        referee_.shut_down(rank, "why");
        look(rank);
        steps(20);
        ranks_.settle();
        for (const int other : all_ranks()) look(other);
        referee_.expect_left();
        for (const int other : all_ranks())
            Referee::require(ranks_.at(other).finished(), "a rank goes on after the last entry");
    }

    /// A rank dies, and the others notice, each at some later time: up to that they go on with what
    /// the dead one has still sent.
    void die(int victim) {
        note("die", victim, "");
        std::set<int> living(all_ranks().begin(), all_ranks().end());
        living.erase(victim);
        while (!living.empty()) {
            const int rank = random_.pick(living);
            switch (random_.below(20)) {
                case 0: living.erase(rank); break;
                case 1: shut_down(rank); break;
                case 2: join(rank); break;
                case 3:
                case 4:
                case 5: submit(rank); break;
                case 6:
                case 7: flush(rank); break;
                default: deliver_to(rank); break;
            }
        }
    }

    void flush(int rank) {
        const auto before = ranks_.messages_sent();
        ranks_.flush(rank);
        if (ranks_.messages_sent() != before)
            note("flush", rank, std::to_string(ranks_.messages_sent() - before) + " messages");
        look(rank);
    }

    void deliver() {
        if (!ranks_.links().empty())
            deliver(std::next(ranks_.links().begin(),
                              static_cast<std::ptrdiff_t>(random_.below(ranks_.links().size())))
                        ->first);
    }

    void deliver_to(int rank) {
        std::vector<Negotiation::Link> links;
        for (const auto& [link, messages] : ranks_.links())
            if (link.second == rank) links.push_back(link);
        if (!links.empty()) deliver(random_.pick(links));
    }

    void deliver(Negotiation::Link link) {
        note("deliver", link.second, "from " + std::to_string(link.first));
        ranks_.deliver(link);
        look(link.second);
    }

    /// Flushes and delivers in random order until nobody has anything to say.
    void settle() {
        do {
            while (!ranks_.links().empty()) random_.one_in(4) ? flush(any_rank()) : deliver();
            for (const int rank : all_ranks()) flush(rank);
        } while (!ranks_.links().empty());
        referee_.expect_quiet();
        const auto root = ranks_.at(0).holdings();
        Referee::require(root.ids <= character_.options.max_ids + root.rounds,
                         "there are more ids than there may be");
        for (const int rank : all_ranks())
            Referee::require(ranks_.at(rank).holdings().ids == root.ids,
                             "the tables of ids differ");
    }

    /// Hands what the rank has learnt to the referee.
    void look(int rank) {
        auto& looked = own_[static_cast<std::size_t>(rank)].looked;
        for (; looked < ranks_.log(rank).size(); ++looked)
            referee_.learnt(rank, ranks_.log(rank)[looked]);
        Referee::require(ranks_.at(rank).holdings().submissions == referee_.pending(rank).size(),
                         "the rank has lost count of its requests");
    }

    void note(std::string_view what, int rank, const std::string& detail) {
        if (tracing_)
            trace_.append(what)
                .append(" ")
                .append(std::to_string(rank))
                .append(" ")
                .append(detail)
                .append("\n");
    }

    std::uint64_t seed_;
    bool tracing_;
    Random random_;
    Character character_;
    Negotiation ranks_;
    Referee referee_;
    std::vector<Own> own_;
    std::string trace_;
};

/// Totals over many walks.
struct Walks {
    std::size_t runs = 0;
    std::size_t entries = 0;     ///< of the log, which were judged
    std::size_t refusals = 0;    ///< of damaged messages
    std::size_t violations = 0;  ///< of the rules

    std::string text() const {
        return "simulated runs: " + std::to_string(runs) +
               ", violations: " + std::to_string(violations);
    }
};

/// Walks with the seeds from `first` on, until one breaks a rule.
Walks walk(std::uint64_t first, std::size_t count) {
    Walks walks;
    for (auto seed = first; seed < first + count && walks.violations == 0; ++seed) {
        ++walks.runs;
        try {
            Walk history(seed);
            history.run();
            walks.entries += history.entries();
        } catch (const std::exception& failure) {
            Walk again(seed, true);
            try {
                again.run();
            } catch (const std::exception&) {  // as before
            }
            ++walks.violations;
            FAIL_CHECK("walk " << seed << ": " << failure.what() << "\n" << again.trace());
        }
    }
    return walks;
}

/// One thing that may not happen to a message, or a message of nobody.
void corrupt(protocol::Bytes& message, const protocol::Bytes& other, Random& random) {
    const auto any_byte = [&] { return static_cast<std::byte>(random.below(256)); };
    constexpr std::size_t position_bytes = 1;  // of the log, in front of every message
    switch (random.below(6)) {
        case 0:
            for (auto flips = 1 + random.below(3); flips > 0; --flips)
                message[random.below(message.size())] ^=
                    static_cast<std::byte>(1u << random.below(8));
            break;
        case 1: message[random.below(message.size())] = any_byte(); break;
        case 2: message.resize(random.below(message.size())); break;
        case 3: {
            const protocol::Bytes parts(other.begin() + position_bytes, other.end());
            message.insert(message.end(), parts.begin(), parts.end());
            break;
        }
        case 4:
            message.insert(
                message.begin() + static_cast<std::ptrdiff_t>(random.below(message.size() + 1)),
                any_byte());
            break;
        case 5:
            message.resize(position_bytes + random.below(40));
            for (auto& byte : std::span(message).subspan(position_bytes))
                byte = random.one_in(2) ? static_cast<std::byte>(random.below(8)) : any_byte();
            break;
    }
}

/// The ranks go on after that until they have nothing to say, or one of them finds the fault: true.
/// Any other error is ours.
bool find_fault(Negotiation ranks) {
    try {
        ranks.settle();
        ranks.shut_down_everywhere();
        ranks.settle();
        return false;
    } catch (const Error& error) {
        Referee::require(error.code() == ErrorCode::wire, error.what());
        return true;
    }
}

/// Histories in which one message is damaged, in the middle. Nothing may happen but that a rank
/// refuses it.
Walks walk_damaged(std::uint64_t first, std::size_t count) {
    Walks walks;
    for (auto seed = first; seed < first + count && walks.violations == 0; ++seed) {
        Walk history(seed);
        Random random(seed);
        history.steps(10 + random.below(150));
        auto ranks = history.ranks();
        if (ranks.links().empty()) continue;
        const auto link = [&] {
            return std::next(ranks.links().begin(),
                             static_cast<std::ptrdiff_t>(random.below(ranks.links().size())));
        };
        auto& queue = link()->second;
        corrupt(queue[random.below(queue.size())], link()->second.front(), random);
        ++walks.runs;
        try {
            if (find_fault(std::move(ranks))) ++walks.refusals;
        } catch (const std::exception& failure) {
            ++walks.violations;
            FAIL_CHECK("damaged walk " << seed << ": " << failure.what());
        }
    }
    return walks;
}

}  // namespace

TEST_CASE("random walks keep the rules of the negotiation") {
    CHECK(walk(seed(), 4000).entries > 4000);
}

TEST_CASE("very many random walks keep the rules of the negotiation", "[.slow]") {
    const auto walks = walk(seed(), 30000);
    CHECK(walks.entries > 30000);
    std::cout << walks.text() << std::endl;
}

TEST_CASE("a damaged message is refused or harmless") {
    CHECK(walk_damaged(seed(), 5000).refusals > 500);
}

TEST_CASE("very many damaged messages are refused or harmless", "[.slow]") {
    const auto walks = walk_damaged(seed(), 30000);
    CHECK(walks.refusals > 3000);
    std::cout << walks.text() << ", with a message that was damaged" << std::endl;
}

}  // namespace guozhuang::test
