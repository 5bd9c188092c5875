#include "support/cases/async_cases.hpp"

namespace guozhuang::test {

void release_others(Session& session) {
    std::uint8_t word = 0;
    if (session.rank() > 0) return recv(word, 0, {.tag = 77, .session = &session});
    for (int rank = 1; rank < session.size(); ++rank)
        send(word, rank, {.tag = 77, .session = &session});
}

void handle_life(Session& session, Report& report) {
    using namespace std::chrono_literals;
    std::vector<float> numbers{1, 2};
    Handle handle;
    report.expect(!handle, "a handle of nothing says so");
    if (session.rank() == 0 && session.size() > 1) {
        handle = allreduce_async(numbers, {.name = "late", .session = &session});
        report.expect(static_cast<bool>(handle), "a handle of something says so");
        report.expect(!handle.done(), "not done while the others have not submitted it");
        report.expect(!handle.wait_for(2ms), "wait_for gives up");
    }
    release_others(session);
    if (!handle) handle = allreduce_async(numbers, {.name = "late", .session = &session});
    const auto copy = handle;
    copy.wait();
    report.expect(handle.done() && handle.wait_for(0ms), "done after wait");
    handle.wait();
    report.expect(numbers[1] == 2.0F * static_cast<float>(session.size()), "the sum");
}

void barrier_beside_pending(Session& session, Report& report) {
    double number = session.rank();
    Handle handle;
    if (session.rank() == 0)
        handle = allreduce_async(number, {.name = "behind the barrier", .session = &session});
    barrier({.name = "in front", .session = &session});
    report.expect(session.rank() != 0 || session.size() == 1 || !handle.done(),
                  "the barrier does not complete what is pending");
    release_others(session);
    if (session.rank() != 0)
        handle = allreduce_async(number, {.name = "behind the barrier", .session = &session});
    handle.wait();
    report.expect_equal(number, session.size() * (session.size() - 1) / 2.0,
                        "the sum after the barrier");
}

void keep_alive_case(Session& session, Report& report) {
    auto memory = std::make_shared<std::vector<double>>(1000, 1.0);
    const std::weak_ptr<void> watched = memory;
    auto handle =
        allreduce_async(*memory, {.name = "kept", .keep_alive = memory, .session = &session});
    memory.reset();
    handle.wait();
    report.expect(watched.expired(),
                  "the owner is released on completion, though the handle lives");
}

void many_threads(Session& session, Report& report) {
    constexpr int threads = 4, operations = 25;
    std::vector<Report> reports(threads);
    const auto work = [&](int thread) {
        auto& own = reports[static_cast<std::size_t>(thread)];
        for (int i = 0; i < operations; ++i) {
            const auto name = text_of("thread ", thread, " operation ", i);
            start_allreduce(session, name, {DType::f32, {100 * i}, {}})(own);
            const int peer = (session.rank() + 1) % session.size(),
                      other = (session.rank() + session.size() - 1) % session.size();
            int out = i, in = -1;
            const auto sent = send_async(
                out, peer, {.tag = static_cast<std::uint16_t>(thread), .session = &session});
            recv(in, other, {.tag = static_cast<std::uint16_t>(thread), .session = &session});
            sent.wait();
            own.expect_equal(in, i, name + ": message");
        }
    };
    {
        std::vector<std::jthread> running;
        for (int thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
    }
    for (const auto& own : reports)
        for (const auto& problem : own.problems()) report.expect(false, problem);
}

void unnamed_operations(Session& session, Report& report) {
    int one = 1, two = 10, root = session.rank();
    std::vector<Handle> handles;
    if (session.rank() % 2 == 0)
        handles.push_back(broadcast_async(root, session.size() - 1, {.session = &session}));
    handles.push_back(allreduce_async(one, {.session = &session}));
    handles.push_back(allreduce_async(two, {.session = &session}));
    if (session.rank() % 2 == 1)
        handles.push_back(broadcast_async(root, session.size() - 1, {.session = &session}));
    for (const auto& handle : handles) handle.wait();
    report.expect(one == session.size() && two == 10 * session.size() && root == session.size() - 1,
                  "unnamed operations meet in order");

    // A name that looks like a number's is another one.
    std::vector<int> tens(50, 10);
    handles.clear();
    for (std::size_t i = 0; i < tens.size(); ++i)
        handles.push_back(
            allreduce_async(tens[i], {.name = text_of("allreduce #", i), .session = &session}));
    for (std::size_t i = 0; i < tens.size(); ++i)
        allreduce(one, {.op = ReduceOp::max, .session = &session});
    for (const auto& handle : handles) handle.wait();
    report.expect(tens == std::vector<int>(50, 10 * session.size()) && one == session.size(),
                  "named beside unnamed");
}

void many_in_flight(Session& session, Report& report) {
    constexpr int operations = 200;
    std::vector<Finish> started;
    for (int i = 0; i < operations; ++i) {
        const int number = session.rank() % 2 == 0 ? i : operations - 1 - i;
        started.push_back(start_allreduce(session, text_of("in flight ", number),
                                          {DType::i32, {number * 13 % 700}, {ReduceOp::sum}}));
    }
    for (const auto& finish : started) finish(report);
}

}  // namespace guozhuang::test
