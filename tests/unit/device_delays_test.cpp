// Devices that are slow at random, or that stand still at a step while the job is aborted: on the
// host fake, whose streams call `before_work`.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/cases/random_operations.hpp"
#include "support/fakes/aborted_paths.hpp"
#include "support/fakes/fake_driver.hpp"
#include "support/fakes/slow_stream.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/sanitizer.hpp"
#include "support/tensors/device_views.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// While it lives, all streams of the host fake call this before each piece of work.
class BeforeWork {
public:
    explicit BeforeWork(void (*action)()) { before_work = action; }
    ~BeforeWork() { before_work = nullptr; }
    BeforeWork(const BeforeWork&) = delete;
    BeforeWork& operator=(const BeforeWork&) = delete;
};

// --- random delays -------------------------------------------------------------------------------

std::atomic<std::uint64_t> delays_seed{0}, delays_drawn{0};

/// Every fourth piece of work is late by up to 300 us.
void delay_at_random() {
    Numbers numbers(delays_seed, ++delays_drawn);
    if (numbers.below(4) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(numbers.below(300)));
}

void random_operations_on_a_device(Session& session, Report& report) {
    constexpr int rounds = under_sanitizer ? 4 : 12;
    RandomOperations(Among(session).on(on_fake_device), seed()).run(report, rounds);
}

/// A tensor that goes through each slot of the staged path more than twice.
void allreduce_of_many_chunks(Session& session, Report& report) {
    start_allreduce(Among(session).on(on_fake_device), "many chunks",
                    {DType::f32, {under_sanitizer ? 500'000 : 5'000'000}, {ReduceOp::sum}})(report);
}

// --- aborts at a step ----------------------------------------------------------------------------

std::atomic<int> steps_begun{0}, steps_allowed{0};
std::atomic<bool> is_known{false};

/// Stands still before each step that is not allowed, until all ranks know that the job is over.
/// But no longer than this, which is more than a rank that leaves waits for its device: the fake's
/// streams are waited for when they are destroyed.
constexpr std::chrono::milliseconds longest_hold{400};
/// Meanwhile all ranks enqueue what they can.
constexpr std::chrono::milliseconds until_enqueued{50};

void hold_behind_allowed() {
    if (++steps_begun <= steps_allowed) return;
    const auto end = std::chrono::steady_clock::now() + longest_hold;
    while (!is_known && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

constexpr std::size_t count = 20'000;  ///< of several chunks

/// The tensors of a rank on its device. They outlive the job.
struct Tensors {
    std::vector<float> sum = std::vector<float>(count, 1), sent = sum, gathered = sum;
};

std::vector<Handle> submit(Tensors& tensors, const AllreduceOptions& options) {
    return {allreduce_async(view_of(tensors.sum, on_fake_device), options),
            broadcast_async(view_of(tensors.sent, on_fake_device), 0, {.name = "sent"}),
            all_gather_async(view_of(tensors.gathered, on_fake_device), {.name = "gathered"})};
}

/// Each ends, and if it fails it is for the reason of this test; what is called then fails, too.
void expect_end(const std::vector<Handle>& handles, Report& report) {
    for (const auto& handle : handles)
        if (const auto error = error_of([&] { handle.wait(); }))
            report.expect(std::string(error->what()).find("mine") != std::string::npos,
                          error->what());
    expect_error(report, ErrorCode::departed, {"mine"}, [] { barrier(); });
}

/// Steps count when all have done an operation by the path that they take.
void begin_steps(const Session& session, int allowed) {
    std::vector<float> first(5, 1);
    allreduce(view_of(first, on_fake_device));
    barrier();
    if (session.rank() == 0) steps_begun = 0, steps_allowed = allowed;
    barrier();
}

/// Returns whether it holds within so many seconds.
bool comes_to_hold(int seconds, const auto& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return condition();
}

/// The first rank ends the job when this many steps of all ranks have begun, and the next ones
/// stand still. The last rank's stream goes on when the others' have, which wait for it until the
/// job is over. Returns false if there are no more steps than that.
bool abort_behind(int steps, int ranks, int hosts) {
    steps_allowed = std::numeric_limits<int>::max();
    is_known = false;
    std::vector<Tensors> tensors(static_cast<std::size_t>(ranks));
    std::vector<Report> reports(tensors.size());
    std::atomic<int> knowing{0}, released{0};
    bool is_held = true;
    SlowStream slow;
    const BeforeWork holding(hold_behind_allowed);
    const auto job = [&](Session& session) {
        const auto rank = static_cast<std::size_t>(session.rank());
        const bool is_last = session.rank() == ranks - 1;
        begin_steps(session, steps);
        AllreduceOptions options{.name = "sum"};
        if (is_last)
            options.stream = slow.ref();
        else
            options.keep_alive = {nullptr, [&](void*) { ++released; }};
        const auto handles = submit(tensors[rank], options);
        if (rank == 0) {
            is_held = comes_to_hold(1, [&] { return steps_begun > steps; });
            std::this_thread::sleep_for(until_enqueued);
            throw std::runtime_error("mine");
        }
        expect_end(handles, reports[rank]);
        if (++knowing == ranks - 1) is_known = true;
        if (!is_last) return;
        reports[rank].expect(comes_to_hold(10, [&] { return released == ranks - 1; }),
                             "streams stand still");
        slow.let_go();
    };
    CHECK_THROWS_WITH(run_ranks(ranks, job, {.hosts = hosts}), "mine");
    CHECK(knowing == ranks - 1);
    for (const auto& report : reports) CHECK(report.problems() == std::vector<std::string>());
    return is_held;
}

/// Behind each of so many steps, or as many as there are.
void abort_behind_each(int most, int ranks, int hosts) {
    int steps = 0;
    while (steps < most && abort_behind(steps, ranks, hosts)) ++steps;
    CHECK(steps >= 10);
}

void abort_on_each_path(int most) {
    const LogCapture log;
    const Environment bytes("GUOZHUANG_DEVICE_BYTES", "64K");
    for (const auto* path : aborted_paths) {
        INFO(path);
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        abort_behind_each(most, 3, 1);
    }
    INFO("staged on two hosts");
    const Environment wanted("GUOZHUANG_DEVICE_PATH", "staged");
    abort_behind_each(most, 4, 2);
}

}  // namespace

TEST_CASE("operations are right on devices that delay each piece of work at random") {
    const Environment bytes("GUOZHUANG_DEVICE_BYTES", "64K");  // so that there are many chunks
    delays_seed = seed();
    const BeforeWork delays(delay_at_random);
    for (const auto* path : {"direct", "ring", "staged"}) {
        INFO(path);
        const Environment wanted("GUOZHUANG_DEVICE_PATH", path);
        for (const int ranks : rank_counts({2, 3, 5}))
            CHECK(problems_among(ranks, random_operations_on_a_device) == "");
    }
    const Environment wanted("GUOZHUANG_DEVICE_PATH", "staged");
    CHECK(problems_among(4, random_operations_on_a_device, {.hosts = 2}) == "");
    CHECK(problems_among(2, allreduce_of_many_chunks) == "");
    CHECK(delays_drawn > 1000);
}

TEST_CASE("a job that is aborted at any of its devices' first steps ends for all with the cause") {
    abort_on_each_path(10);
}

TEST_CASE("a job that is aborted at any of many steps ends for all with the cause", "[.slow]") {
    abort_on_each_path(80);
}
