// Tensors behind a stream: the operation waits for the stream, nobody else does. On the host fake,
// so on any machine.
#include <array>
#include <atomic>
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/cases/output_cases.hpp"
#include "support/cases/process_set_cases.hpp"
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

Tensor on_fake(Tensor tensor) {
    tensor.device = {DeviceKind::cuda, 0};
    return tensor;
}

/// The tensor gets its contents on the stream, behind what holds it up; host operations pass
/// meanwhile.
void allreduce_behind_slow_stream(Session& session, Report& report, const test::Reduce& reduce) {
    const auto name = label_of("streamed", reduce.dtype, reduce.how.op, reduce.shape);
    const auto contents = contribution(name, session.rank(), reduce.dtype, reduce.shape);
    auto tensor = on_fake(Tensor(reduce.dtype, reduce.shape));
    SlowStream stream;
    stream.launch([&] { tensor.bytes = contents.bytes; });
    auto options = options_of(session, name, reduce.how);
    options.stream = stream.ref();
    const auto handle = allreduce_async(tensor.view(), options);
    start_allreduce(session, name + " on the host", reduce)(report);
    report.expect(!handle.done(), name + ": not done while its stream is busy");
    stream.let_go();
    handle.wait();
    check_allreduced(session, report, name, tensor, reduce.how);
}

}  // namespace

TEST_CASE(
    "allreduce of device tensors behind a slow stream is that of host tensors, which do not wait "
    "for it") {
    for (const int ranks : rank_counts({1, 2, 3, 5}))
        CHECK(problems_among(ranks, [](Session& session, Report& report) {
                  for (const auto dtype : {DType::f32, DType::bf16, DType::i8})
                      for (const std::int64_t count : {0, 1, session.size() + 1, 4099, 60'001})
                          allreduce_behind_slow_stream(session, report,
                                                       {dtype, {count}, {ReduceOp::average}});
              }) == "");
}

TEST_CASE(
    "device tensors give the bits of host tensors, also when they go through each slot twice") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              for (const std::int64_t count : {5, 50'000, 5'000'000}) {
                  auto host = contribution("either", session.rank(), DType::f32, {count});
                  auto fake = on_fake(host);
                  allreduce(host.view());
                  allreduce(fake.view());  // on the default stream
                  report.expect(host.bytes == fake.bytes, "the bits differ");
              }
          }) == "");
}

TEST_CASE(
    "waiting on a stream returns when the operation is enqueued, and orders what follows on the "
    "stream") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              std::vector<float> numbers(1000, 0), seen;
              SlowStream stream;
              stream.launch([&] { numbers.assign(1000, 2); });
              const TensorView tensor(numbers.data(), DType::f32, {1000}, {DeviceKind::cuda, 0});
              const auto handle =
                  allreduce_async(tensor, {.name = "enqueued", .stream = stream.ref()});
              handle.wait(stream.ref());
              stream.launch([&] { seen = numbers; });
              report.expect(!handle.done(), "enqueued, not finished");  // the stream stands still
              stream.let_go();
              stream.finish();
              report.expect(
                  seen == std::vector<float>(1000, 2.0F * static_cast<float>(session.size())),
                  "the work behind it sees the sum");
              handle.wait();
          }) == "");
}

TEST_CASE("every operation takes device tensors") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              SlowStream stream;
              stream.let_go();
              const auto rank = session.rank();
              const Options options{.stream = stream.ref()};
              auto tensor = on_fake(contribution("all", rank, DType::i32, {3, 2}));
              const auto all = contributions("all", 3, DType::i32, {3, 2});
              check_parts(report, "all_gather", all_gather(tensor.view(), options), all);
              check_parts(
                  report, "all_to_all", all_to_all(tensor.view(), {}, options),
                  {rows_of(all[0], rank, 1), rows_of(all[1], rank, 1), rows_of(all[2], rank, 1)});
              check_reduce_scattered(session, report, "all",
                                     reduce_scatter(tensor.view(), {.stream = stream.ref()}),
                                     {DType::i32, {3, 2}, {}});
              broadcast(tensor.view(), 1, options);
              report.expect(tensor.bytes == all[1].bytes, "broadcast");
          }) == "");
}

TEST_CASE("process sets that overlap are used crosswise") {
    for (const auto* path : {"staged", "auto"}) {
        const Environment environment("GUOZHUANG_DEVICE_PATH", path);
        for (const int ranks : rank_counts({2, 3, 4}))
            CHECK(problems_among(
                      ranks, sets_in_different_orders(50, 300, Device{DeviceKind::cuda, 0})) == "");
    }
}

TEST_CASE("results on a device go to the caller's memory, also where some ranks give none") {
    for (const int ranks : rank_counts({1, 2, 3, 4}))
        CHECK(problems_among(ranks, [](Session& session, Report& report) {
                  const auto among = Among(session).on({DeviceKind::cuda, 0});
                  std::vector<std::int64_t> rows;
                  for (int rank = 0; rank < session.size(); ++rank) rows.push_back(rank * 300);
                  const Splits splits(rows.size(), rows);
                  for (const auto* name : {"a", "b", "c"}) {
                      start_all_gather(among, text_of("gather ", name), DType::i16, rows,
                                       {7})(report);
                      start_all_to_all(among, text_of("exchange ", name), DType::f64, splits,
                                       {2})(report);
                      start_reduce_scatter(among, text_of("scatter ", name),
                                           {DType::bf16, {50'001}, {}})(report);
                  }
              }) == "");
}

TEST_CASE("an output on a device of other rows than come fails on its rank alone") {
    for (const int ranks : rank_counts({1, 2, 3, 4}))
        CHECK(problems_among(ranks, [](Session& session, Report& report) {
                  misfits(Among(session).on({DeviceKind::cuda, 0}), report);
              }) == "");
}

TEST_CASE("waiting on a stream throws where an output of other rows is still to be filled") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> numbers(10, 1), all(20);
              const Device fake{DeviceKind::cuda, 0};
              SlowStream stream;
              const TensorView output(all.data(), DType::f32, {session.rank() == 0 ? 20 : 19},
                                      fake);
              const auto handle =
                  all_gather_async(TensorView(numbers.data(), DType::f32, {10}, fake),
                                   {.name = "late", .stream = stream.ref(), .outputs = {output}});
              if (session.rank() == 0) {
                  handle.wait(stream.ref());
                  stream.let_go();
                  handle.wait();
                  report.expect(all == std::vector<float>(20, 1), "gathered");
                  return;
              }
              report.expect(!handle.wait_for(std::chrono::milliseconds(20)),
                            "it ends when its stream has come to it");
              stream.let_go();
              expect_error(report, ErrorCode::invalid_argument,
                           {"all_gather 'late': output of rank 1 has 19 rows, but its result has "
                            "20: 10 from ranks 0,1"},
                           [&] { handle.wait(stream.ref()); });
          }) == "");
}

TensorView on_fake(std::vector<float>& numbers) {
    return view_of(numbers, on_fake_device);
}

/// Rank 0 sends to the last rank, from each of two kinds of memory to each: what the sender's
/// stream has yet to write, over what the receiver's stream has yet to write.
void message_between_streams(Session& session, Report& report, std::size_t count, bool from_device,
                             bool to_device) {
    const int last = session.size() - 1;
    std::vector<float> sent(count, 1), received(count, 2), seen;
    SlowStream sender, receiver;
    Handle sending, receiving;
    if (session.rank() == last) {
        receiver.launch([&] { received.assign(count, 3); });
        if (!to_device) receiver.let_go(), receiver.finish();
        receiving = recv_async(view_of(received, to_device ? on_fake_device : on_host), 0,
                               {.stream = receiver.ref()});
    }
    if (session.rank() == 0) {
        sender.launch([&] { sent.assign(count, 4); });
        if (!from_device) sender.let_go(), sender.finish();
        sending = send_async(view_of(sent, from_device ? on_fake_device : on_host), last,
                             {.stream = sender.ref()});
        start_allreduce(session, "meanwhile", {DType::f32, {5}})(report);
        report.expect(!from_device || count == 0 || !sending.done(), "sent before it is there");
        sender.let_go();
    } else {
        start_allreduce(session, "meanwhile", {DType::f32, {5}})(report);
    }
    if (receiving) {
        receiving.wait(receiver.ref());
        receiver.launch([&] { seen = received; });
        report.expect(!to_device || count == 0 || !receiving.done(), "written too early");
        receiver.let_go();
        receiver.finish();
        report.expect(seen == std::vector<float>(count, 4), "what the stream sees is not sent");
        receiving.wait();
    }
    if (sending) sending.wait();
}

TEST_CASE("a message is sent when the sender's stream has it, and the receiver's stream sees it") {
    for (const int ranks : {1, 2, 3})
        for (const bool from_device : {true, false})
            for (const bool to_device : {true, false})
                CHECK(problems_among(ranks, [&](Session& session, Report& report) {
                          for (const std::size_t count : {0u, 1u, 4099u, 300'001u, 4099u})
                              message_between_streams(session, report, count, from_device,
                                                      to_device);
                      }) == "");
}

TEST_CASE("no stream waits for a message, nor a message for another whose tensor is not ready") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              std::vector<float> slow(3000, 1), quick(5000, 2);
              SlowStream held, free;
              free.let_go();
              const int other = 1 - session.rank();
              if (session.rank() == 0) {
                  const auto behind = send_async(on_fake(slow), other, {.stream = held.ref()});
                  send(on_fake(quick), other, {.tag = 1, .stream = free.ref()});
                  report.expect(!behind.done(), "sent, though its stream stands still");
                  held.let_go();
                  behind.wait();
              } else {
                  std::vector<float> first(3000, 0), second(5000, 0);
                  const auto late = recv_async(on_fake(first), other, {.stream = free.ref()});
                  recv(on_fake(second), other, {.tag = 1, .stream = free.ref()});
                  free.finish();  // though the first has not arrived
                  late.wait();
                  report.expect(first == slow && second == quick, "not what was sent");
              }
          }) == "");
}

TEST_CASE("messages of one tag arrive in the order they were sent, whichever is ready first") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              constexpr std::size_t count = 3000;
              SlowStream held, free;
              free.let_go();
              std::vector<float> first(count, 1), second(count, 2), third(count, 3);
              const int other = 1 - session.rank();
              std::vector<Handle> handles;
              if (session.rank() == 0) {
                  handles.push_back(send_async(on_fake(first), other, {.stream = held.ref()}));
                  handles.push_back(send_async(second, other));
                  handles.push_back(send_async(on_fake(third), other, {.stream = free.ref()}));
                  report.expect(!handles.back().wait_for(std::chrono::milliseconds(20)),
                                "the third is sent before the first");
                  held.let_go();
              } else {
                  for (auto* const tensor : {&first, &second, &third}) tensor->assign(count, 0);
                  handles.push_back(recv_async(first, other));
                  handles.push_back(recv_async(on_fake(second), other, {.stream = free.ref()}));
                  handles.push_back(recv_async(third, other));
              }
              for (const auto& handle : handles) handle.wait();
              report.expect(first == std::vector<float>(count, 1), "the first");
              report.expect(second == std::vector<float>(count, 2), "the second");
              report.expect(third == std::vector<float>(count, 3), "the third");
          }) == "");
}

TEST_CASE("a session closes while messages of device tensors are on their way") {
    for (int again = 0; again < repeats(20); ++again)
        CHECK(problems_among(2, [](Session& session, Report& report) {
                  std::vector<float> sent(3000, 1), received(3000, 0);
                  const int other = 1 - session.rank();
                  SlowStream stream;
                  recv_async(on_fake(received), other, {.stream = stream.ref()});
                  send_async(on_fake(sent), other, {.stream = stream.ref()});
                  stream.let_go();
                  session.close();
                  report.expect(received == sent, "not what was sent");
              }) == "");
}

TEST_CASE("a job is aborted while messages of device tensors are on their way") {
    const LogCapture log;  // of what nobody waited for
    for (int again = 0; again < 6; ++again) {
        std::vector<float> numbers[2][2];
        const auto job = [&](Session& session) {
            auto& own = numbers[session.rank()];
            for (auto& tensor : own) tensor.assign(100'000, 1);
            const int other = 1 - session.rank();
            SlowStream stream;
            const auto receiving = recv_async(on_fake(own[0]), other, {.stream = stream.ref()});
            const auto sending = send_async(on_fake(own[1]), other, {.stream = stream.ref()});
            if (session.rank() == 0 && again % 2 == 0) stream.let_go();
            if (session.rank() == 0) throw std::runtime_error("mine");
            sending.wait();  // for ever, if nothing happened: rank 1 never lets go
        };
        CHECK_THROWS_WITH(run_ranks(2, job), "mine");
    }
}

namespace {

std::string name_of_this_thread() {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    return name.data();
}

}  // namespace

TEST_CASE(
    "what a message keeps alive outlives its failure, while the stream may still use it, and goes "
    "on no thread of the device's") {
    const LogCapture log;
    std::atomic<bool> is_on_stream{false}, was_released_early{false};
    std::string releaser;  // the name of the thread that let go
    std::vector<float> sent(5000, 1), received(5000, 0);
    SlowStream stream;  // it outlives the session
    const auto job = [&](Session& session) {
        if (session.rank() == 0) {
            const auto receiving = recv_async(received, 1);
            while (!is_on_stream) std::this_thread::yield();
            throw std::runtime_error("mine");
        }
        const auto handle = send_async(
            on_fake(sent), 0,
            {.stream = stream.ref(),
             .keep_alive = {sent.data(), [&](void*) { releaser = name_of_this_thread(); }}});
        handle.wait_for(std::chrono::milliseconds(100));  // matched, and being copied
        is_on_stream = true;
        (void)error_of([&] { handle.wait(); });
        was_released_early = !releaser.empty();
        stream.let_go();
    };
    CHECK_THROWS_WITH(run_ranks(2, job), "mine");
    CHECK_FALSE(was_released_early);
    CHECK(!releaser.empty());
    CHECK(releaser != "gz-completions");
}

TEST_CASE("a session closes while device operations are on their way, whose handles are dropped") {
    for (int again = 0; again < repeats(20); ++again) {
        CHECK(problems_among(2, [](Session& session, Report& report) {
                  std::vector<float> numbers[3] = {std::vector<float>(3000, 1),
                                                   std::vector<float>(5, 2), std::vector<float>(0)};
                  SlowStream stream;
                  for (auto& tensor : numbers)
                      allreduce_async(TensorView(tensor.data(), DType::f32,
                                                 {static_cast<std::int64_t>(tensor.size())},
                                                 {DeviceKind::cuda, 0}),
                                      {.stream = stream.ref()});
                  stream.let_go();
                  session.close();
                  report.expect(numbers[0] == std::vector<float>(3000, 2) &&
                                    numbers[1] == std::vector<float>(5, 4),
                                "the sums");
              }) == "");
    }
}

TEST_CASE("a job is aborted while device operations are on their way") {
    const LogCapture log;  // of what nobody waited for
    for (int again = 0; again < repeats(30); ++again) {
        const Environment path(
            "GUOZHUANG_DEVICE_PATH",
            aborted_paths[static_cast<std::size_t>(again) % aborted_paths.size()]);
        std::vector<float> numbers[2][3];
        Handle handles[2];
        const auto job = [&](Session& session) {
            const auto rank = static_cast<std::size_t>(session.rank());
            SlowStream stream;
            for (auto& tensor : numbers[rank]) {
                tensor.assign(100'000, 1);
                handles[rank] = allreduce_async(
                    TensorView(tensor.data(), DType::f32, {100'000}, {DeviceKind::cuda, 0}),
                    {.stream = stream.ref()});
            }
            if (rank == 0) throw std::runtime_error("mine");
            handles[rank].wait();  // for ever, if nothing happened: rank 1 never lets go
        };
        CHECK_THROWS_WITH(run_ranks(2, job), "mine");
        for (const auto& handle : handles) {
            if (!handle) continue;  // the other rank was aborted before it came so far
            CHECK(handle.done());
            CHECK_THROWS_AS(handle.wait(), Error);
        }
    }
}

TEST_CASE(
    "what an operation keeps alive outlives its failure, while the stream may still use it, and "
    "goes on no thread of the device's") {
    const Environment path("GUOZHUANG_DEVICE_PATH", aborted_paths.front());
    const LogCapture log;
    std::atomic<bool> has_failed{false}, was_released_early{false};
    std::string releaser;  // the name of the thread that let go
    std::atomic<int> enqueued{0};
    std::vector<float> numbers[2] = {std::vector<float>(100'000, 1),
                                     std::vector<float>(100'000, 1)};
    SlowStream streams[2];  // they wait for the operations, and so outlive the session
    const auto job = [&](Session& session) {
        const bool is_first = session.rank() == 0;
        auto& stream = streams[is_first ? 0 : 1];
        std::shared_ptr<void> owner;
        if (!is_first) owner = {nullptr, [&](void*) { releaser = name_of_this_thread(); }};
        const auto handle =
            allreduce_async(TensorView(numbers[is_first ? 0 : 1].data(), DType::f32, {100'000},
                                       {DeviceKind::cuda, 0}),
                            {.stream = stream.ref(), .keep_alive = std::move(owner)});
        handle.wait(stream.ref());
        ++enqueued;
        while (enqueued < 2) std::this_thread::yield();
        if (is_first) stream.let_go();
        if (is_first) throw std::runtime_error("mine");
        has_failed = error_of([&] { handle.wait(); }).has_value();
        was_released_early = !releaser.empty();
        stream.let_go();
    };
    CHECK_THROWS_WITH(run_ranks(2, job), "mine");
    CHECK(has_failed);
    CHECK_FALSE(was_released_early);
    CHECK(!releaser.empty());
    CHECK(releaser != "gz-completions");
}

TEST_CASE("tensors and streams that do not belong together are refused") {
    CHECK(problems_among(1, [](Session&, Report& report) {
              std::vector<float> numbers(2);
              const TensorView fake(numbers.data(), DType::f32, {2}, {DeviceKind::cuda, 0});
              expect_error(report, ErrorCode::invalid_argument, {"not a stream of the host fake"},
                           [&] { allreduce(fake, {.stream = StreamRef{}}); });
              expect_error(report, ErrorCode::invalid_argument, {}, [&] {
                  allreduce(TensorView(numbers.data(), DType::f32, {2}, {DeviceKind::cuda, 7}));
              });
              auto* const between = reinterpret_cast<std::byte*>(numbers.data()) + 1;
              const auto unaligned = [&](std::int64_t count) {
                  return TensorView(between, DType::f32, {count}, fake.device);
              };
              expect_error(report, ErrorCode::invalid_argument,
                           {"no multiple of the 4 bytes of an element of f32"},
                           [&] { allreduce(unaligned(1)); });
              allreduce(unaligned(0));
              expect_error(report, ErrorCode::invalid_argument,
                           {"tensor [0] is on cuda 0, but [1] on the host"}, [&] {
                               grouped_allreduce(std::vector<TensorView>{fake, numbers});
                           });
              expect_error(report, ErrorCode::invalid_argument,
                           {"send", "not a stream of the host fake"},
                           [&] { send(fake, 0, {.stream = StreamRef{}}); });
              expect_error(report, ErrorCode::invalid_argument, {"recv", "7"}, [&] {
                  recv(TensorView(numbers.data(), DType::f32, {2}, {DeviceKind::cuda, 7}), 0);
              });
              allreduce(fake);
          }) == "");
}

TEST_CASE("ranks that take turns refuse tensors on a device") {
    const auto body = [](Session&) {
        std::vector<float> numbers(2);
        allreduce(TensorView(numbers.data(), DType::f32, {2}, {DeviceKind::cuda, 0}));
    };
    CHECK_THROWS_WITH(run_ranks(1, body, {.turns = 1}), Catch::Matchers::Contains("take turns"));
    const auto message = [](Session&) {
        std::vector<float> numbers(2);
        send(on_fake(numbers), 0);
    };
    CHECK_THROWS_WITH(run_ranks(1, message, {.turns = 1}), Catch::Matchers::Contains("take turns"));
}
