// The order of an operation and the work before and after it on the trainer's stream.

#include "emulation/ranks/kernels.hpp"

#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <numeric>
#include <vector>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr std::size_t counts[] = {1, 4099, 600'001};

float sum_of_ranks(const Session& session) {
    return static_cast<float>(session.size() * (session.size() + 1)) / 2;
}

/// Written by a slow kernel before, read by a kernel after: the host waits for none of it.
void allreduce_between_kernels(Session& session, Report& report, std::size_t count) {
    Trainer trainer;
    const auto size = static_cast<unsigned>(count);
    const auto values = trainer.put_elements(std::vector<float>(count, -1));
    const auto seen = Trainer::device_memory_of<float>(count);
    launch_set(values.get(), size, static_cast<float>(session.rank() + 1), trainer.native());
    const auto handle =
        allreduce_async(trainer.view(values, count),
                        {.name = text_of("between ", count), .stream = trainer.stream()});
    handle.wait(trainer.stream());
    launch_scale(values.get(), seen.get(), size, 2, trainer.native());
    report.expect(are_all(trainer.elements(seen, count), 2 * sum_of_ranks(session)),
                  text_of("what the kernel saw of ", count));
    handle.wait();
}

/// The same, with the trainer's memory for the result.
void all_gather_between_kernels(Session& session, Report& report, std::size_t count) {
    Trainer trainer;
    const auto all = count * static_cast<std::size_t>(session.size());
    const auto size = static_cast<unsigned>(count);
    const auto values = trainer.put_elements(std::vector<float>(count, -1));
    const auto output = trainer.put_elements(std::vector<float>(all, -1)),
               seen = trainer.put_elements(std::vector<float>(all, -1));
    launch_set(values.get(), size, 3, trainer.native());
    const auto handle =
        all_gather_async(trainer.view(values, count), {.name = text_of("gathered between ", count),
                                                       .stream = trainer.stream(),
                                                       .outputs = {trainer.view(output, all)}});
    handle.wait(trainer.stream());
    launch_scale(output.get(), seen.get(), static_cast<unsigned>(all), 2, trainer.native());
    report.expect(are_all(trainer.elements(seen, all), 6),
                  text_of("what the kernel saw of gathered ", count));
    handle.wait();
}

/// The first launch of each kernel waits until the device is idle, the library's and the trainer's:
/// so before anything stands still.
void launch_all_once(Session& session, Report& report, Trainer& trainer) {
    const auto values = trainer.put_elements(std::vector<float>{0});
    launch_set(values.get(), 1, 1, trainer.native());
    trainer.synchronize();
    start_allreduce(session, "first launches", {DType::f32, {5}})(report);
}

/// Behind a stream that stands still on every rank.
void held_allreduce(Session& session, Report& report, std::size_t count) {
    Trainer trainer;
    launch_all_once(session, report, trainer);
    const auto values = trainer.put_elements(std::vector<float>(count, -1));
    const Gate gate;
    gate.hold(trainer.native());
    launch_set(values.get(), static_cast<unsigned>(count), static_cast<float>(session.rank() + 1),
               trainer.native());
    const auto handle = allreduce_async(
        trainer.view(values, count), {.name = text_of("held ", count), .stream = trainer.stream()});
    for (int i = 0; i < 20; ++i)
        start_allreduce(Among(session).on({}), text_of("host meanwhile ", count, " ", i),
                        {DType::f32, {20'011}})(report);
    handle.wait(trainer.stream());
    let_streams_run();
    report.expect(!handle.done(), "not done while the stream stands still");
    barrier({.name = text_of("all have looked at ", count)});
    gate.open();
    handle.wait();
    report.expect(are_all(trainer.elements(values, count), sum_of_ranks(session)),
                  text_of("the sums of ", count));
}

/// The paths of a new set are tried while a trainer stream stands still on rank 0, until
/// the set's first bundle is enqueued on all ranks.
void first_of_a_set_beside_a_held_stream(Session& session, Report& report) {
    Trainer trainer;
    launch_all_once(session, report, trainer);
    std::vector<int> all(static_cast<std::size_t>(session.size()));
    std::iota(all.begin(), all.end(), 0);
    auto set = ProcessSet::create(all);
    constexpr std::size_t count = 1001;
    const auto values =
        trainer.put_elements(std::vector<float>(count, static_cast<float>(session.rank() + 1)));
    const TestStream held;
    const Gate gate;
    if (session.rank() == 0) gate.hold(held.native);
    const auto handle =
        allreduce_async(trainer.view(values, count),
                        {.name = "first", .stream = trainer.stream(), .process_set = set});
    handle.wait(trainer.stream());
    barrier({.name = "enqueued on all ranks"});
    gate.open();
    handle.wait();
    report.expect(are_all(trainer.elements(values, count), sum_of_ranks(session)), "the sums");
    set.remove();
}

/// Two tensors in a row of an arena, which is zero at first.
void allreduce_in_an_arena(Session& session, Report& report) {
    constexpr std::size_t count = 600'000;
    Trainer trainer;
    GradientArena arena(8 << 20, trainer.stream().device, &session);
    std::vector<TensorView> views;
    for (int i = 0; i < 2; ++i) {
        auto* const values = static_cast<float*>(arena.allocate(count * sizeof(float)));
        std::vector<float> first(count, -1);
        trainer.get(std::as_writable_bytes(std::span(first)), values);
        report.expect(are_all(first, 0), "the arena at first");
        launch_set(values, static_cast<unsigned>(count), static_cast<float>(session.rank() + 1),
                   trainer.native());
        views.emplace_back(values, DType::f32, Shape{count}, trainer.stream().device);
    }
    grouped_allreduce(views, {.stream = trainer.stream()});
    for (const auto& view : views) {
        std::vector<float> sums(count);
        trainer.get(std::as_writable_bytes(std::span(sums)), view.data);
        report.expect(are_all(sums, sum_of_ranks(session)), "the sums in the arena");
    }
}

/// The name is free as soon as the operation is enqueued, if the next is behind it on the stream.
void one_name_again(Session& session, Report& report) {
    Trainer trainer;
    launch_all_once(session, report, trainer);
    constexpr std::size_t count = 5000;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    const Gate gate;
    gate.hold(trainer.native());
    std::vector<Handle> handles;
    for (int turn = 0; turn < 3; ++turn) {
        handles.push_back(
            allreduce_async(trainer.view(values, count),
                            {.name = "again", .op = ReduceOp::sum, .stream = trainer.stream()}));
        handles.back().wait(trainer.stream());
    }
    report.expect(!handles.front().done(), "the first stands still");
    barrier({.name = "all have submitted thrice"});
    gate.open();
    for (const auto& handle : handles) handle.wait();
    const auto ranks = static_cast<float>(session.size());
    report.expect(are_all(trainer.elements(values, count), ranks * ranks * ranks),
                  "each sum is of the one before");
}

/// Each rank sends to the next: what a slow kernel writes, over what another one writes there.
void message_between_kernels(Session& session, Report& report, std::size_t count) {
    Trainer trainer;
    const auto size = static_cast<unsigned>(count);
    const auto sent = Trainer::device_memory_of<float>(count);
    const auto received = Trainer::device_memory_of<float>(count);
    const auto seen = Trainer::device_memory_of<float>(count);
    const int ranks = session.size(), left = (session.rank() + ranks - 1) % ranks;
    launch_set(sent.get(), size, static_cast<float>(session.rank() + 1), trainer.native());
    launch_set(received.get(), size, -1, trainer.native());
    const PointToPointOptions options{.stream = trainer.stream()};
    const auto receiving = recv_async(trainer.view(received, count), left, options);
    const auto sending =
        send_async(trainer.view(sent, count), (session.rank() + 1) % ranks, options);
    receiving.wait(trainer.stream());
    launch_scale(received.get(), seen.get(), size, 2, trainer.native());
    report.expect(are_all(trainer.elements(seen, count), 2 * static_cast<float>(left + 1)),
                  text_of("what the kernel saw of ", count));
    receiving.wait();
    sending.wait();
}

/// A message whose tensor stands still holds up neither another one nor the host.
void held_message(Session& session, Report& report, std::size_t count) {
    Trainer trainer;
    launch_all_once(session, report, trainer);
    const auto sent = trainer.put_elements(std::vector<float>(count, 5));
    const auto held = trainer.put_elements(std::vector<float>(count, -2));
    const auto received = trainer.put_elements(std::vector<float>(count, -1));
    const TestStream other;
    trainer.synchronize();
    const Gate gate;
    gate.hold(trainer.native());
    launch_set(held.get(), static_cast<unsigned>(count), 6, trainer.native());
    const int self = session.rank();
    const PointToPointOptions options{.stream = trainer.stream()};
    const auto receiving = recv_async(trainer.view(received, count), self, options);
    const auto sending = send_async(trainer.view(held, count), self, options);
    const PointToPointOptions passing{.tag = 1,
                                      .stream = StreamRef{trainer.stream().device, other.native}};
    const auto passes = send_async(trainer.view(sent, count), self, passing);
    std::vector<float> on_host(count);
    recv(on_host, self, {.tag = 1});
    report.expect(are_all(on_host, 5.0F), "what passed");
    passes.wait();
    let_streams_run();
    report.expect(!sending.done() && !receiving.done(), "done while its stream stands still");
    gate.open();
    receiving.wait();
    report.expect(are_all(trainer.elements(received, count), 6.0F), "what was held");
    sending.wait();
}

}  // namespace

TEST_CASE("tensors in an arena on a device") {
    CHECK(problems_here(allreduce_in_an_arena) == "");
}

TEST_CASE("a message is between the kernels before and after it") {
    for (const auto count : counts)
        CHECK(problems_here([count](Session& session, Report& report) {
                  message_between_kernels(session, report, count);
              }) == "");
}

TEST_CASE("messages pass one behind a kernel that stands still") {
    for (const auto count : counts)
        CHECK(problems_here([count](Session& session, Report& report) {
                  held_message(session, report, count);
              }) == "");
}

TEST_CASE("an allreduce is between the kernels before and after it") {
    for (const auto count : counts)
        CHECK(problems_here([count](Session& session, Report& report) {
                  allreduce_between_kernels(session, report, count);
              }) == "");
}

TEST_CASE("an all_gather to the trainer's memory is between the kernels before and after it") {
    for (const auto count : counts)
        CHECK(problems_here([count](Session& session, Report& report) {
                  all_gather_between_kernels(session, report, count);
              }) == "");
}

TEST_CASE("host operations pass an allreduce behind a kernel that stands still") {
    for (const auto count : counts)
        CHECK(problems_here([count](Session& session, Report& report) {
                  held_allreduce(session, report, count);
              }) == "");
}

TEST_CASE("a new set tries its paths without waiting for the trainer's streams", "[new_set]") {
    CHECK(problems_here(first_of_a_set_beside_a_held_stream) == "");
}

TEST_CASE("a name again, while the operation that had it is still on the GPU") {
    CHECK(problems_here(one_name_again) == "");
}

TEST_CASE("many device operations, submitted in another order by each rank") {
    CHECK(problems_here([](Session& session, Report& report) {
              Trainer trainer;
              std::vector<Finish> started;
              const int all = 60;
              for (int i = 0; i < all; ++i) {
                  const int number = session.rank() % 2 == 0 ? i : all - 1 - i;
                  started.push_back(start_allreduce(session, text_of("many ", number),
                                                    {DType::f32, {1 + 977 * number}}));
              }
              for (const auto& finish : started) finish(report);
          }) == "");
}

TEST_CASE("a plan of device tensors, a hundred rounds") {
    CHECK(problems_here([](Session& session, Report& report) {
              Trainer trainer;
              constexpr std::size_t count = 3001, tensors = 4;
              std::vector<std::shared_ptr<float>> memory;
              std::vector<std::vector<NamedTensor>> bundles(2);
              for (std::size_t i = 0; i < tensors; ++i) {
                  memory.push_back(Trainer::device_memory_of<float>(count + i));
                  bundles[i % 2].push_back({text_of("t", i), trainer.view(memory[i], count + i)});
              }
              Plan plan(bundles, {.op = ReduceOp::sum, .stream = trainer.stream()});
              for (int round = 0; round < 100; ++round) {
                  for (std::size_t i = 0; i < tensors; ++i) {
                      const auto value = static_cast<float>((session.rank() + 1) * (round + 1));
                      launch_scale(trainer.put_elements(std::vector<float>(count + i, value)).get(),
                                   memory[i].get(), static_cast<unsigned>(count + i), 1,
                                   trainer.native());
                  }
                  for (const std::size_t bundle : {0U, 1U}) plan.ready(bundle);
                  plan.wait();
                  const auto expected = sum_of_ranks(session) * static_cast<float>(round + 1);
                  for (std::size_t i = 0; i < tensors; ++i)
                      report.expect(are_all(trainer.elements(memory[i], count + i), expected),
                                    text_of("round ", round, ", tensor ", i));
              }
          }) == "");
}
