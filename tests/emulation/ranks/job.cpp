// A trainer on emulated GPUs that faults befall: guozhuang_cuda_job SCENE. Each rank says how it
// ended, a line of `rank R at MS ms: OUTCOME: TEXT`, for faults.py.

#include "emulation/ranks/kernels.hpp"

#include <csignal>
#include <cstdio>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "emulation/ranks/trainer.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/runner/report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

void say(const Session& session, const std::string& what) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const auto line = text_of("rank ", session.rank(), " at ",
                              now.tv_sec * 1000 + now.tv_nsec / 1'000'000, " ms: ", what, "\n");
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(9);  // at once, as one
}

void require(bool fine, const char* what) {
    if (!fine) throw std::logic_error(text_of("wrong result: ", what));
}

bool is_victim(const Session& session) {
    return session.rank() == session.size() - 1;
}

// --- every operation -----------------------------------------------------------------------------

std::vector<float> elements_of(Trainer& trainer, Result result) {
    std::vector<float> all(count_of(result.shape));
    trainer.get(std::as_writable_bytes(std::span(all)), result.device_memory.get());
    return all;
}

void reduce_somehow(const Session& session, Trainer& trainer, ReduceOp op, std::size_t count) {
    const auto values = trainer.put_elements(std::vector<float>(count, 2));
    allreduce(trainer.view(values, count), {.op = op, .stream = trainer.stream()});
    const auto sum = static_cast<float>(2 * session.size());
    require(are_all(trainer.elements(values, count), op == ReduceOp::sum ? sum : 2.0F),
            "allreduce");
}

void move_rows(const Session& session, Trainer& trainer) {
    const auto ranks = static_cast<std::size_t>(session.size());
    const auto values = trainer.put_elements(std::vector<float>(ranks, 3));
    const auto view = trainer.view(values, ranks);
    const Options options{.stream = trainer.stream()};
    require(are_all(elements_of(trainer, all_gather(view, options)), 3.0F), "all_gather");
    require(are_all(elements_of(trainer, all_to_all(view, {}, options)), 3.0F), "all_to_all");
    const auto share = reduce_scatter(view, {.stream = trainer.stream()});
    require(are_all(elements_of(trainer, share), static_cast<float>(3 * ranks)), "reduce_scatter");
    const auto uneven = trainer.put_elements(std::vector<float>(ranks + 1, 3));
    const auto most = reduce_scatter(trainer.view(uneven, ranks + 1), {.stream = trainer.stream()});
    require(are_all(elements_of(trainer, most), static_cast<float>(3 * ranks)), "reduce_scatter");
    broadcast(view, 0, options);
    require(are_all(trainer.elements(values, ranks), 3.0F), "broadcast");
}

/// Each rank sends to itself and the next, and receives from itself and the one before.
void move_messages(const Session& session, Trainer& trainer) {
    constexpr std::size_t count = 100'000;
    const int ranks = session.size(), rank = session.rank();
    for (const int distance : {0, 1}) {
        const auto sent = trainer.put_elements(std::vector<float>(count, 4));
        const auto received = trainer.put_elements(std::vector<float>(count, 0));
        // If one of them fails, the other is still on its way.
        const auto keeping = [&](const std::shared_ptr<void>& tensor) {
            return PointToPointOptions{.stream = trainer.stream(), .keep_alive = tensor};
        };
        const auto receiving = recv_async(trainer.view(received, count),
                                          (rank + ranks - distance) % ranks, keeping(received));
        send(trainer.view(sent, count), (rank + distance) % ranks, keeping(sent));
        receiving.wait();
        require(are_all(trainer.elements(received, count), 4.0F), "message");
    }
}

void run_plan(const Session& session, Trainer& trainer) {
    constexpr std::size_t count = 2000;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    Plan plan({{{"values", trainer.view(values, count)}}},
              {.op = ReduceOp::sum, .stream = trainer.stream()});
    for (int round = 0; round < 3; ++round) {
        plan.ready(0);
        plan.wait();
    }
    const auto ranks = static_cast<float>(session.size());
    require(are_all(trainer.elements(values, count), ranks * ranks * ranks), "plan");
}

void steps(Session& session) {
    Trainer trainer;
    for (int step = 0; step < 3; ++step) {
        for (const std::size_t count : {5U, 1'310'723U})
            for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::adasum})
                reduce_somehow(session, trainer, op, count);
        move_rows(session, trainer);
        move_messages(session, trainer);
        run_plan(session, trainer);
    }
    if (session.rank() == 0) reduce_somehow(session, trainer, ReduceOp::average, 7);
    join();
}

void host_only(Session& session) {
    for (int step = 0; step < 20; ++step) {
        std::vector<float> values(5000, 2);
        allreduce(values);
        require(are_all(values, static_cast<float>(2 * session.size())), "allreduce");
    }
}

/// The first two ranks' set takes long to choose its path, and the world does not wait for it.
void connects_slowly(Session& session) {
    const auto first_two = ProcessSet::create({0, 1});
    Trainer trainer;
    constexpr std::size_t count = 5;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    std::optional<Handle> connecting;
    if (session.rank() < 2)
        connecting = allreduce_async(
            trainer.view(values, count),
            {.op = ReduceOp::sum, .stream = trainer.stream(), .process_set = first_two});
    for (int step = 0; step < 3; ++step) reduce_somehow(session, trainer, ReduceOp::sum, count);
    say(session, "the world goes on");
    if (!connecting) return;
    connecting->wait();
    require(are_all(trainer.elements(values, count), 2.0F), "allreduce of the set");
}

/// The last rank's device comes to a broadcast when the others close their sessions; what they have
/// on their devices is kept.
void lags(Session& session) {
    auto& trainer = *new Trainer;
    reduce_somehow(session, trainer, ReduceOp::sum, 5);
    constexpr std::size_t count = 1'000'000;
    auto& values =
        *new auto(trainer.put_elements(std::vector<float>(count, session.rank() == 0 ? 7 : 0)));
    std::optional<Gate> gate;
    if (is_victim(session)) gate.emplace().hold(trainer.native());
    const auto handle =
        broadcast_async(trainer.view(values, count), 0, {.stream = trainer.stream()});
    handle.wait(trainer.stream());
    barrier();
    if (!is_victim(session)) return;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    gate->open();
    require(are_all(trainer.elements(values, count), 7.0F), "broadcast");
}

// --- faults --------------------------------------------------------------------------------------

/// Device and host operations that go on until something fails.
[[noreturn]] void run_until_failure(Session&, Trainer& trainer) {
    constexpr std::size_t count = 4'000'000;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    for (;;) {
        const auto view = trainer.view(values, count);
        const auto handle =
            allreduce_async(view, {.op = ReduceOp::average, .stream = trainer.stream()});
        handle.wait(trainer.stream());
        allreduce(view, {.op = ReduceOp::max, .stream = trainer.stream()});
        handle.wait();
    }
}

/// Ends this rank while all others are in operations, after a while or behind a standing stream.
void end_in_the_middle(Session& session, const std::function<void()>& end) {
    Trainer trainer;
    if (!is_victim(session)) run_until_failure(session, trainer);
    std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        say(session, "begins");
        end();
    }).detach();
    run_until_failure(session, trainer);
}

void killed(Session& session) {
    end_in_the_middle(session, [] { raise(SIGKILL); });
}

/// The device of the last rank's process fails while messages are on their way.
void broken_messages(Session& session) {
    Trainer trainer;
    move_messages(session, trainer);
    say(session, "begins");
    int device = 0;
    cudaGetDevice(&device);
    if (is_victim(session)) {
        std::thread([device] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            emulated_cuda_break_device(device);
        }).detach();
    }
    for (;;) move_messages(session, trainer);
}

/// The last rank dies while nobody has anything on a device.
void killed_idle(Session& session) {
    Trainer trainer;
    reduce_somehow(session, trainer, ReduceOp::sum, 5);
    if (!is_victim(session)) return barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    say(session, "begins");
    raise(SIGKILL);
}

/// A message is behind a device that stands still, and the device then fails.
void broken_behind(Session& session) {
    auto& trainer = *new Trainer;
    move_messages(session, trainer);
    constexpr std::size_t count = 1000;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    if (!is_victim(session)) return recv(trainer.view(values, count), session.size() - 1);
    int device = 0;
    cudaGetDevice(&device);
    (new Gate)->hold(trainer.native());
    const auto handle = send_async(trainer.view(values, count), 0, {.stream = trainer.stream()});
    handle.wait_for(std::chrono::milliseconds(300));
    say(session, "begins");
    emulated_cuda_break_device(device);
    handle.wait();
}

/// The device of the last rank fails while an allreduce that all have submitted is behind it.
void broken_under_way(Session& session) {
    auto& trainer = *new Trainer;
    reduce_somehow(session, trainer, ReduceOp::sum, 5);
    constexpr std::size_t count = 1000;
    auto& values = *new auto(trainer.put_elements(std::vector<float>(count, 1)));
    if (is_victim(session)) (new Gate)->hold(trainer.native());
    const auto handle =
        allreduce_async(trainer.view(values, count), {.name = "grad", .stream = trainer.stream()});
    barrier();
    if (is_victim(session)) {
        int device = 0;
        cudaGetDevice(&device);
        say(session, "begins");
        emulated_cuda_break_device(device);
    }
    handle.wait();
}

/// The device of the last rank's process fails.
void broken(Session& session) {
    end_in_the_middle(session, [&] {
        int devices = 0;
        cudaGetDeviceCount(&devices);
        emulated_cuda_break_device(session.local_rank() % devices);
    });
}

/// An allreduce that all have enqueued, the last rank behind work of its own that never ends; what
/// holds it is kept.
Handle stand_still(Session& session, bool endless_kernel) {
    auto& trainer = *new Trainer;
    reduce_somehow(session, trainer, ReduceOp::sum, 5);  // what waits for the device is done now
    constexpr std::size_t count = 4'000'000;
    auto& values = *new auto(trainer.put_elements(std::vector<float>(count, 1)));
    if (is_victim(session) && endless_kernel) launch_endless(trainer.native());
    if (is_victim(session) && !endless_kernel) (new Gate)->hold(trainer.native());
    auto handle = allreduce_async(trainer.view(values, count), {.stream = trainer.stream()});
    handle.wait(trainer.stream());
    barrier();
    return handle;
}

/// A rank throws while its device stands still, so nothing that it has enqueued will end.
void fail_behind(Session& session, bool endless_kernel) {
    const auto handle = stand_still(session, endless_kernel);
    if (is_victim(session)) {
        say(session, "begins");
        throw std::runtime_error("the reason of this test");
    }
    handle.wait();
}

/// The program ends while an operation is on its way, without closing the session.
void exits(Session& session) {
    const auto handle = stand_still(session, false);
    say(session, "fine");
    std::exit(is_victim(session) ? 3 : 0);
}

/// A rank leaves before it has submitted what the others wait for on their devices.
void leaves(Session& session) {
    Trainer trainer;
    reduce_somehow(session, trainer, ReduceOp::sum, 5);
    if (is_victim(session)) {
        say(session, "begins");
        throw std::runtime_error("the reason of this test");
    }
    reduce_somehow(session, trainer, ReduceOp::sum, 6);
}

const std::map<std::string, std::function<void(Session&)>> scenes = {
    {"steps", steps},
    {"host", host_only},
    {"connects_slowly", connects_slowly},
    {"lags", lags},
    {"killed", killed},
    {"killed_idle", killed_idle},
    {"broken", broken},
    {"broken_messages", broken_messages},
    {"broken_behind", broken_behind},
    {"broken_under_way", broken_under_way},
    {"leaves", leaves},
    {"exits", exits},
    {"held", [](Session& session) { fail_behind(session, false); }},
    {"hung", [](Session& session) { fail_behind(session, true); }},
};

int play(Session& session, const std::string& scene) {
    try {
        scenes.at(scene)(session);
        say(session, "fine");
        return 0;
    } catch (const Error& error) {
        say(session, text_of(name_of(error.code()), ": ", error.what()));
        throw;
    } catch (const std::exception& error) {
        say(session, text_of("exception: ", error.what()));
        throw;
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string scene = argc > 1 ? argv[1] : "steps";
    return run(&argc, &argv, [&](Session& session) { return play(session, scene); });
}
