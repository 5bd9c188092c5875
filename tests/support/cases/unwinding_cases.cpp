#include "support/cases/unwinding_cases.hpp"

namespace guozhuang::test {

void last_rank_after_rank0(Session& session) {
    int word = 1;
    const int last = session.size() - 1;
    if (last == 0) return;
    if (session.rank() == 0) send(word, last, {.session = &session});
    if (session.rank() == last) recv(word, 0, {.session = &session});
}

bool all_are(std::span<const float> numbers, float expected) {
    return std::ranges::all_of(numbers, [&](float number) { return number == expected; });
}

float mean_of_ranks(Session& session) {
    return static_cast<float>(session.size() + 1) / 2;
}

void exception_in_backward(Session& session, Report& report, std::size_t count, DeviceKind device) {
    constexpr float checkpoint = -7;
    std::vector<float> gradient(count, static_cast<float>(session.rank() + 1));
    auto view = TensorView(gradient);
    view.device.kind = device;
    try {
        // A plan, since an optimizer would hold back its last bundle.
        Plan plan({{{"w", view}}}, {.session = &session});
        if (session.rank() == session.size() - 1 && session.rank() != 0)
            last_rank_after_rank0(session);
        plan.ready(0);
        if (session.rank() == 0) throw std::domain_error("in backward");
        plan.wait();
        report.expect(all_are(gradient, mean_of_ranks(session)),
                      text_of("the mean of ", count, " is not right: ", gradient[0]));
    } catch (const std::domain_error&) {
        std::ranges::fill(gradient, checkpoint);
        last_rank_after_rank0(session);
    }
    barrier({.session = &session});
    if (session.rank() == 0)
        report.expect(all_are(gradient, checkpoint),
                      text_of("memory of ", count, " was written to: ", gradient[0]));
}

void exceptions_in_backward(Session& session, Report& report) {
    for (const std::size_t count : {std::size_t{8'192}, std::size_t{1} << 20})
        exception_in_backward(session, report, count, DeviceKind::host);
}

void arena_gone_in_flight(Session& session, Report& report) {
    constexpr std::size_t count = 200'000;
    const int last = session.size() - 1;
    auto arena = std::make_unique<GradientArena>(2 << 20, &session);
    const std::span<float> numbers(static_cast<float*>(arena->allocate(count * sizeof(float))),
                                   count);
    std::ranges::fill(numbers, static_cast<float>(session.rank() + 1));
    if (session.rank() == 0) {
        const auto sum = allreduce_async(
            numbers, {.name = "in the arena", .op = ReduceOp::average, .session = &session});
        const auto message =
            last == 0 ? Handle() : send_async(numbers, last, {.tag = 1, .session = &session});
        arena.reset();
        last_rank_after_rank0(session);
        sum.wait();
        if (message) message.wait();
        return;
    }
    if (session.rank() == last) last_rank_after_rank0(session);
    allreduce(numbers, {.name = "in the arena", .op = ReduceOp::average, .session = &session});
    report.expect(all_are(numbers, mean_of_ranks(session)),
                  text_of("the mean in the arena is not right: ", numbers[0]));
    if (session.rank() != last) return;
    recv(numbers, 0, {.tag = 1, .session = &session});
    report.expect(all_are(numbers, 1), text_of("what the arena had is lost: ", numbers[0]));
}

void registration_ended_in_flight(Session& session, Report& report) {
    std::vector<float> numbers(300'000);
    const TensorView view(numbers);
    for (int turn = 0; turn < 20; ++turn) {
        auto registration = share({&view, 1}, &session);
        std::ranges::fill(numbers, static_cast<float>(session.rank() + 1));
        const auto handle =
            allreduce_async(view, {.name = "shared", .op = ReduceOp::average, .session = &session});
        if (turn % 2 == 1) static_cast<void>(handle.wait_for(std::chrono::microseconds(20 * turn)));
        if ((session.rank() + turn) % 2 == 0) registration = {};
        handle.wait();
        report.expect(all_are(numbers, mean_of_ranks(session)),
                      text_of("turn ", turn, ": the mean is not right"));
    }
}

}  // namespace guozhuang::test
