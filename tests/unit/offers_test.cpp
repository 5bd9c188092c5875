#include "wire/group/shared_memory_group.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/fakes/inproc_ranks.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::wire;
using guozhuang::test::run_staging_ranks;

namespace {

/// On a rank's thread, where a CHECK cannot be.
void require_right(bool holds) {
    if (!holds) throw std::runtime_error("a wrong number");
}

/// Shows a number in a round that is offered. Returns the numbers of all, or none if the round does
/// not go ahead.
std::vector<int> offer(SharedMemoryGroup& memory, std::uint64_t fingerprint, int number) {
    if (!memory.begin_offer(fingerprint)) return {};
    const auto round = memory.round();
    std::memcpy(memory.note(memory.rank(), round).data(), &number, sizeof number);
    memory.publish(sizeof number);
    if (!memory.await(round)) return {};
    std::vector<int> numbers(static_cast<std::size_t>(memory.size()));
    for (int peer = 0; peer < memory.size(); ++peer)
        std::memcpy(&numbers[static_cast<std::size_t>(peer)], memory.note(peer, round).data(),
                    sizeof number);
    return numbers;
}

/// The same in a round that they have agreed on.
std::vector<int> agree(SharedMemoryGroup& memory, int number) {
    memory.begin();
    const auto round = memory.round();
    std::memcpy(memory.note(memory.rank(), round).data(), &number, sizeof number);
    memory.publish(sizeof number);
    require_right(memory.await(round));
    std::vector<int> numbers(static_cast<std::size_t>(memory.size()));
    for (int peer = 0; peer < memory.size(); ++peer)
        std::memcpy(&numbers[static_cast<std::size_t>(peer)], memory.note(peer, round).data(),
                    sizeof number);
    return numbers;
}

/// Where the ranks meet after a round, by other means.
class Barrier {
public:
    explicit Barrier(int ranks) : ranks_(ranks) {}
    template <class Meanwhile>
    void wait(const Meanwhile& meanwhile) {
        const int all = (arrived_.fetch_add(1) / ranks_ + 1) * ranks_;
        while (arrived_.load() < all) {
            meanwhile();
            std::this_thread::yield();
        }
    }

private:
    const int ranks_;
    std::atomic<int> arrived_{0};
};

}  // namespace

TEST_CASE("a round of equal offers goes ahead, and shows each rank what all have given") {
    const int ranks = GENERATE(1, 2, 3, 4);
    CAPTURE(ranks);
    std::atomic<int> ahead{0};
    Barrier barrier(ranks);
    CHECK_NOTHROW(run_staging_ranks(ranks, [&](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        for (int call = 0; call < 200; ++call) {
            const auto numbers = offer(memory, 7, call * ranks + group.group_rank);
            for (std::size_t peer = 0; peer < numbers.size(); ++peer)
                require_right(numbers[peer] == call * ranks + static_cast<int>(peer));
            if (!numbers.empty()) ++ahead;
            barrier.wait([] {});
            if (numbers.empty()) agree(memory, 0);  // so that the next can be offered
        }
    }));
    // A busy machine may keep a rank from its turn for longer than the others spin. (That ranks
    // which take turns go ahead, operations_test.cpp shows.)
    if (ranks == 1) CHECK(ahead == 200);
    CHECK(ahead % ranks == 0);
}

TEST_CASE("where a rank must not spin, it sleeps in a round that is offered for a while") {
    std::atomic<base::Doorbell*> sleeper{nullptr};
    std::atomic<int> ahead{0}, calls_of_sleeper{0};
    Barrier barrier(2);
    CHECK_NOTHROW(run_staging_ranks(2, [&](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        auto& bell = group.transport.doorbell();
        for (const int ago : {150, 75})  // suspends spinning for the next two minutes
            bell.backoff.note_late(base::Clock::now() - std::chrono::seconds(ago),
                                   std::chrono::seconds(60));
        if (group.group_rank == 0) sleeper = &bell;
        // A busy machine may keep this thread from its core until the other has slept its fill.
        for (int call = 0; call < 1000 && ahead < 2; ++call) {
            barrier.wait([] {});
            if (group.group_rank == 1)
                while (sleeper.load()->asleep(base::Sleepers::for_news) == 0 &&
                       calls_of_sleeper <= call)
                    std::this_thread::yield();
            const bool done = !offer(memory, 7, call).empty();
            if (group.group_rank == 0) ++calls_of_sleeper;
            barrier.wait([] {});
            if (done) ++ahead;
            if (!done) agree(memory, 0);
            barrier.wait([] {});
        }
    }));
    CHECK(ahead == 2);
}

TEST_CASE("a round does not go ahead if offers differ") {
    std::atomic<int> ahead{0};
    Barrier barrier(3);
    run_staging_ranks(3, [&](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        const std::uint64_t fingerprint = group.group_rank == 2 ? 8 : 7;
        for (int call = 0; call < 200; ++call) {
            if (!offer(memory, fingerprint, call).empty()) ++ahead;
            barrier.wait([] {});
            agree(memory, 0);
        }
    });
    CHECK(ahead == 0);
}

TEST_CASE("a rank leaves a round without the others, of whom nobody can leave with it") {
    std::atomic<int> ahead{0};
    Barrier barrier(2);
    run_staging_ranks(2, [&](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        if (group.group_rank == 0 && !offer(memory, 7, 1).empty()) ++ahead;
        barrier.wait([] {});
        // Too late: the round is decided.
        if (group.group_rank == 1 && !offer(memory, 7, 1).empty()) ++ahead;
    });
    CHECK(ahead == 0);
}

TEST_CASE("calls are made eagerly by all ranks or by none, whatever each does") {
    const int ranks = GENERATE(2, 3, 4);
    CAPTURE(ranks);
    constexpr int calls = 2000;
    std::vector<std::atomic<int>> eager(calls);
    Barrier barrier(ranks);
    CHECK_NOTHROW(run_staging_ranks(ranks, [&](const Group& group, const Staging& staging) {
        SharedMemoryGroup memory(group, staging);
        std::mt19937 random(static_cast<unsigned>(group.group_rank) * 1000 + 1);
        for (int call = 0; call < calls; ++call) {  // of every fourth nobody has data
            const auto choice = random() % 16;
            const int number = call * ranks + group.group_rank;
            std::vector<int> numbers;
            if (choice > 0) numbers = offer(memory, choice == 1 ? 8 : 7, number);
            const bool done = !numbers.empty();
            if (done) ++eager[static_cast<std::size_t>(call)];
            barrier.wait([&] {
                if (!done) memory.decline();
            });
            if (!done && call % 4 != 0) numbers = agree(memory, number);
            for (std::size_t peer = 0; peer < numbers.size(); ++peer)
                require_right(numbers[peer] == call * ranks + static_cast<int>(peer));
        }
    }));
    CHECK(std::ranges::all_of(
        eager, [&](const auto& count) { return count.load() == 0 || count.load() == ranks; }));
}
