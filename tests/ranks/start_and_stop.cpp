// How a process may come to the library, leave it and end: each scene is a run of its own, under
// mpirun and without:
//   start_and_stop SCENE, which ends with 0 and says nothing if all is as it should be.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <iterator>
#include <latch>
#include <malloc.h>
#include <map>
#include <memory>
#include <mpi.h>
#include <numeric>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace gz = guozhuang;

namespace {

void require(bool condition, const std::string& what) {
    if (condition) return;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
    std::_Exit(1);
}

/// Blocking, asynchronous and long, point to point.
void work(gz::Session& session) {
    std::vector<float> numbers(100'000, 1);
    const auto handle = gz::allreduce_async(numbers, {.session = &session});
    int sum = session.rank();
    gz::allreduce(sum, {.session = &session});
    require(sum == session.size() * (session.size() - 1) / 2, "the sum of the ranks");
    int out = session.rank(), in = -1;
    const int right = (session.rank() + 1) % session.size(),
              left = (session.rank() + session.size() - 1) % session.size();
    const auto sent = gz::send_async(out, right, {.session = &session});
    gz::recv(in, left, {.session = &session});
    sent.wait();
    require(in == left, "the left neighbour's message");
    handle.wait();
    require(numbers.back() == static_cast<float>(session.size()), "the long sum");
}

template <class Use>
void require_refused(Use&& use, const std::string& what) {
    try {
        use();
    } catch (const gz::Error& error) {
        const std::string_view text(error.what());
        return require(
            error.code() == gz::ErrorCode::unavailable && text.find("fork()") != text.npos,
            what + " in a child: " + error.what());
    }
    require(false, what + " in a child is refused");
}

/// The child that `child` runs in ends with code 0 by `end`.
template <class Child>
pid_t fork_child(Child&& child) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    require(pid >= 0, "fork");
    if (pid == 0) {
        alarm(300);  // a hang is a death by a signal
        child();
    }
    return pid;
}

void await(pid_t child) {
    int status = -1;
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "the child's end: " + std::to_string(status));
}

/// Requires that the operation fails because rank 1 has shut down without submitting it.
void require_departed(const gz::Handle& handle, std::string_view why) {
    try {
        handle.wait();
        require(false, "what nobody else has submitted fails");
    } catch (const gz::Error& error) {
        const std::string_view text(error.what());
        require(error.code() == gz::ErrorCode::departed &&
                    text.starts_with("rank 1 has shut down") && text.find(why) != text.npos,
                error.what());
    }
}

struct Sgd {
    void step() {}
};

/// A child may do none of this, and exits as any process does.
void child_of_fork() {
    gz::Session session;
    static std::vector<float> gradient(1000, 1), other(1000, 1);
    const std::vector<gz::Parameter> parameters{{"w", gradient, other}};
    work(session);
    gz::Plan plan({{{"gradient", gradient}}});
    std::vector<int> everybody(static_cast<std::size_t>(session.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    const auto set = gz::ProcessSet::create(everybody);
    const auto begun = gz::allreduce_async(other, {.name = "begun"});
    const auto child = fork_child([&] {
        float number = 1;
        require_refused([&] { gz::allreduce(number); }, "allreduce");
        require_refused([&] { gz::allreduce(number, {.session = &session}); },
                        "allreduce of a session");
        require_refused([&] { session.rank(); }, "rank()");
        require_refused([&] { gz::barrier({.process_set = set}); }, "barrier of a set");
        require_refused([&] { plan.ready(0); }, "a plan");
        require_refused([] { gz::Session(); }, "another session");
        require_refused([] { gz::init(); }, "init()");
        require_refused([] { gz::run_ranks(2, [](gz::Session&) {}); }, "run_ranks");
        require(!gz::is_initialized(), "a child has no session");
        session.close();
        gz::shutdown();
        std::exit(0);
    });
    begun.wait();
    await(child);
    plan.ready(0);
    plan.wait();
    work(session);
}

/// A child returns from main like its parent, through all destructors.
void child_returns() {
    static std::vector<float> numbers(1 << 20, 1);
    gz::Session session;
    const auto begun = gz::allreduce_async(numbers, {.name = "begun"});
    const auto child = fork_child([] {});
    if (child == 0) return;
    begun.wait();
    await(child);
    work(session);
}

/// Children of a process whose threads are in the middle of everything, and hold every lock at
/// times.
void fork_under_load() {
    gz::Session session;
    std::atomic<bool> stop{false};
    gz::set_log_callback([](gz::LogLevel, std::string_view) {});
    std::thread worker([&] {
        for (int go_on = 1; go_on > 0;) {
            go_on = stop ? 0 : 1;
            gz::allreduce(go_on, {.name = "load", .op = gz::ReduceOp::min});
        }
    });
    std::thread asking([&] {
        while (!stop) {
            gz::Session::current().rank();
            gz::log_message(gz::LogLevel::error, "from the parent");
        }
    });
    for (int i = 0; i < 50; ++i) {
        await(fork_child([&] {
            require(std::freopen("/dev/null", "w", stderr) != nullptr, "no output");
            float number = 1;
            require_refused([&] { gz::allreduce(number); }, "allreduce");
            gz::set_log_callback([](gz::LogLevel, std::string_view) {});
            gz::log_message(gz::LogLevel::error, "from a child");
            std::exit(0);
        }));
    }
    stop = true;
    worker.join();
    asking.join();
    gz::set_log_callback({});
    work(session);
}

/// Nor may a child begin what its parent has ended: MPI is the parent's.
void child_after_the_end() {
    {
        gz::Session session;
        work(session);
    }
    const auto child = fork_child([] {
        require_refused([] { gz::Session(); }, "a session");
        std::exit(0);
    });
    await(child);
    gz::Session again;
    work(again);
}

struct Everything {
    gz::Session session;
    std::vector<float> numbers = std::vector<float>(1000, 1),
                       gradients = std::vector<float>(1000, 1);
    Sgd sgd;
    std::vector<gz::Parameter> parameters{{"w", numbers, gradients}};
    gz::DistributedOptimizer<Sgd> optimizer{sgd, parameters};
    gz::Handle handle;
};

/// A static local session is destroyed before the library shuts down, with operations pending on
/// memory that lives longer.
void static_session() {
    static std::vector<float> numbers(1000, 1);
    static Everything all;
    work(all.session);
    all.optimizer.step();
    all.handle = gz::allreduce_async(numbers);
}

std::vector<float> late_numbers(1000, 1);
std::unique_ptr<Everything> late;

/// A static variable that is filled later is destroyed after the library has shut down.
void filled_static() {
    late = std::make_unique<Everything>();
    work(late->session);
    late->optimizer.step();
    late->handle = gz::allreduce_async(late_numbers);
}

/// Never destroyed.
void forgotten() {
    auto* session = new gz::Session;
    work(*session);
}

/// A thread calls exit() while another closes the session, which takes long, since the other ranks
/// come late: whoever is second waits for the first.
void exit_beside_close() {
    gz::Session session;
    work(session);
    const bool exits = session.rank() == 0;
    if (exits)
        std::thread([] { std::exit(0); }).detach();
    else
        usleep(300'000);
    session.close();
    if (exits) pause();  // for the end of the process
}

void require_closed() {
    try {
        gz::barrier();
        require(false, "nothing can be done after MPI_Finalize");
    } catch (const gz::Error& error) {
        const bool says_why =
            std::string_view(error.what()).find("(its process has called MPI_Finalize") !=
            std::string_view::npos;
        require(error.code() == gz::ErrorCode::not_initialised && says_why, error.what());
    }
}

/// The user's MPI_Finalize comes before the end of the session, and closes it.
void finalised_first(int level) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, level, &provided);
    gz::Session session;
    work(session);
    MPI_Finalize();
    require_closed();
}

void finalised_while_pending() {
    static std::vector<float> numbers(100'000, 1), never(1, 1);
    gz::Session session;  // MPI is ours, too
    const auto handle = gz::allreduce_async(numbers);
    gz::Handle lonely;
    if (session.rank() == 0) lonely = gz::allreduce_async(never, {.name = "lonely"});
    const bool alone = session.size() == 1;
    MPI_Finalize();
    handle.wait();
    require(numbers.front() == numbers.back() && (numbers.front() > 1 || alone),
            "what all have begun is done");
    if (lonely && !alone)
        require_departed(lonely,
                         "its process has called MPI_Finalize before the session was closed");
    require_closed();
}

/// Several threads begin the session at the same time, and end it; one too often.
void threads_at_once() {
    constexpr int threads = 4;
    std::latch go(threads);
    std::vector<std::thread> all;
    std::atomic<int> sum{0};
    for (int i = 0; i < threads; ++i)
        all.emplace_back([&] {
            go.arrive_and_wait();
            gz::init();
            sum += gz::size();
        });
    for (auto& thread : all) thread.join();
    require(sum == threads * gz::size(), "the same job for all");
    work(gz::Session::current());
    std::latch stop(threads);
    all.clear();
    for (int i = 0; i < threads; ++i)
        all.emplace_back([&] {
            stop.arrive_and_wait();
            gz::shutdown();
        });
    for (auto& thread : all) thread.join();
    require(!gz::is_initialized(), "as many have ended it");
    gz::shutdown();
}

/// All sorts of operations are on their way when the session is closed; what all ranks have
/// submitted is done.
void pending_at_the_end() {
    static std::vector<float> numbers(1 << 20, 1), never(1, 1), in(1, 1);
    gz::Session session;
    const auto size = static_cast<float>(session.size());
    const auto handle = gz::allreduce_async(numbers);
    for (int i = 0; i < 20; ++i) gz::barrier_async();
    std::vector<gz::Handle> lonely;
    if (session.rank() == 0 && session.size() > 1) {
        lonely.push_back(gz::allreduce_async(never, {.name = "lonely"}));
        lonely.push_back(gz::recv_async(in, 1));
    }
    session.close();
    require(handle.done() && numbers.front() == size && numbers.back() == size, "the sum");
    for (const auto& each : lonely) require_departed(each, "");
}

std::string grown(const char* what, std::ptrdiff_t before, std::ptrdiff_t after) {
    return std::string(what) + " stay as they were: " + std::to_string(before) + " and then " +
           std::to_string(after);
}

/// Resources of this process: open files, threads, mappings, and bytes that the allocator has given
/// out in all threads.
struct Usage {
    std::ptrdiff_t files, threads, maps, allocated;
};

std::ptrdiff_t entries(const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
}

/// The least of several looks: a thread that has been joined is listed for a moment more.
std::ptrdiff_t threads() {
    auto least = entries("/proc/self/task");
    for (int look = 0; look < 20; ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        least = std::min(least, entries("/proc/self/task"));
    }
    return least;
}

Usage usage() {
    std::ptrdiff_t maps = 0;
    std::string line;
    for (std::ifstream file("/proc/self/maps"); std::getline(file, line);) ++maps;
    const auto memory = mallinfo2();
    return {entries("/proc/self/fd"), threads(), maps,
            static_cast<std::ptrdiff_t>(memory.uordblks + memory.hblkhd)};
}

/// Sessions one after the other leave nothing behind. The allocator makes arenas as threads meet in
/// it, of two mappings each, and MPI keeps some bytes of each session.
void cycles(int count) {
    Usage settled{};
    for (int i = 0; i <= count; ++i) {
        gz::Session session;
        work(session);
        session.close();
        if (i == count / 10) settled = usage();
    }
    const auto last = usage();
    require(last.files == settled.files, grown("files", settled.files, last.files));
    require(last.threads == settled.threads, grown("threads", settled.threads, last.threads));
    require(last.maps <= settled.maps + count / 10, grown("mappings", settled.maps, last.maps));
    require(last.allocated <= settled.allocated + count * 100,
            grown("bytes", settled.allocated, last.allocated));
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string_view, std::function<void()>> scenes = {
        {"threads_at_once", threads_at_once},
        {"pending_at_the_end", pending_at_the_end},
        {"static_session", static_session},
        {"filled_static", filled_static},
        {"forgotten", forgotten},
        {"exit_beside_close", exit_beside_close},
        {"finalised_single", [] { finalised_first(MPI_THREAD_SINGLE); }},
        {"finalised_funneled", [] { finalised_first(MPI_THREAD_FUNNELED); }},
        {"finalised_serialized", [] { finalised_first(MPI_THREAD_SERIALIZED); }},
        {"finalised_multiple", [] { finalised_first(MPI_THREAD_MULTIPLE); }},
        {"finalised_while_pending", finalised_while_pending},
        {"child_of_fork", child_of_fork},
        {"child_returns", child_returns},
        {"child_after_the_end", child_after_the_end},
        {"fork_under_load", fork_under_load},
        {"thousand_cycles", [] { cycles(1000); }},
    };
    const auto scene = scenes.find(argc == 2 ? argv[1] : "");
    require(scene != scenes.end(), "the argument is a scene");
    scene->second();
}
