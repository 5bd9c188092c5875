// A rank that suffers faults: worker SCENE BYTES FILE [SCARCITY]. It appends its findings to the
// file as lines of JSON, for faults.py. With a scarcity (scarcity.hpp) the program initializes MPI
// before the session begins. `worker points` lists the failpoints.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <memory>
#include <mpi.h>
#include <numeric>
#include <poll.h>
#include <signal.h>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "base/failpoint.hpp"
#include "report.hpp"
#include "scarcity.hpp"

using namespace guozhuang::test;
using namespace std::chrono_literals;

namespace {

/// Moves data in every way, with known results. An operation in flight may outlive the step if
/// something else fails.
void step(gz::Session& session, int number) {
    const int size = session.size(), rank = session.rank();
    const auto kept = std::make_shared<std::array<std::vector<float>, 2>>();
    auto& [gradient, other] = *kept;
    gradient.assign(std::max<std::size_t>(bytes / sizeof(float), 1),
                    static_cast<float>(rank + number));
    other = gradient;
    std::vector<float> third(3, static_cast<float>(rank));
    const auto handle =
        gz::allreduce_async(other, {.name = fmt::format("async{}", number), .keep_alive = kept});
    gz::allreduce(gradient, {.name = fmt::format("grad{}", number)});
    const int sum_of_ranks = size * (size - 1) / 2;
    const auto sum = static_cast<float>(sum_of_ranks + size * number);
    for (const float value : gradient) require_equal(value, sum, "allreduce");
    handle.wait();
    require_equal(other.back(), sum, "allreduce_async");
    gz::broadcast(third, number % size, {.name = fmt::format("weights{}", number)});
    require_equal(third.front(), static_cast<float>(number % size), "broadcast");
    // Adasum moves as messages.
    gz::allreduce(third, {.name = fmt::format("adasum{}", number), .op = gz::ReduceOp::adasum});
    require_equal(third.front(), static_cast<float>(number % size),
                  "adasum of the same on all ranks");
    const auto gathered =
        gz::all_gather(gradient, {.name = fmt::format("rows{}", number)}).as<float>();
    require_equal(gathered.size(), gradient.size() * static_cast<std::size_t>(size), "all_gather");
    std::vector<float> in(gradient.size());
    const auto sent = gz::send_async(gradient, (rank + 1) % size, {.tag = 7, .keep_alive = kept});
    gz::recv(in, (rank + size - 1) % size, {.tag = 7});
    sent.wait();
    require_equal(in.back(), sum, "recv");
    gz::barrier();
}

using Step = std::function<void(gz::Session&, int number)>;

/// Whether there is another step. There are four, or as many as begin before rank 0 finds the file
/// FAULTS_OVER. Before each, rank FAULTS_LATE, or all if it is negative, waits FAULTS_PAUSE_MS.
bool is_next(const gz::Session& session, int number) {
    const char* const over = std::getenv("FAULTS_OVER");
    if (over == nullptr) return number < 4;
    const int late = std::atoi(std::getenv("FAULTS_LATE"));
    if (late < 0 || late == session.rank()) stay_away(std::atoi(std::getenv("FAULTS_PAUSE_MS")));
    int is_over = access(over, F_OK) == 0 ? 1 : 0;
    gz::broadcast(is_over, 0, {.name = "is_over"});
    return is_over == 0;
}

/// Steps to the end, or to the error, which pending and later operations also get. Says how it goes
/// on if there is FAULTS_OVER: other jobs have ranks that may not write to files.
int repeat(gz::Session& session, const Step& step) {
    const bool tells = std::getenv("FAULTS_OVER") != nullptr;
    float later = 1;
    double longest = 0, start = now_ms();
    try {
        for (int i = 0; is_next(session, i); ++i) {
            step(session, i);
            if (i == 0 && tells)
                say(fmt::format(R"({{"rank": {}, "has_begun": true}})", session.rank()));
            else if (i > 0)
                longest = std::max(longest, now_ms() - start);
            start = now_ms();
        }
        if (tells)
            say(fmt::format(R"({{"rank": {}, "longest_step_ms": {:.3f}}})", session.rank(),
                            longest));
        return 0;
    } catch (const gz::Error& error) {
        say_error(session, "step", error);
        if (error.code() == gz::ErrorCode::internal) throw;  // which is this rank's own
        try {
            gz::allreduce(later, {.name = "later"});
        } catch (const gz::Error& second) {
            say_error(session, "later", second);
        }
        throw;
    }
}

int train(gz::Session& session) {
    return repeat(session, step);
}

/// As many numbers as there are bytes, at least one for each rank, all 1.
std::vector<float> ones(const gz::Session& session) {
    return std::vector<float>(
        std::max(bytes / sizeof(float), static_cast<std::size_t>(session.size())), 1);
}

/// Allreduces in a set without rank 0, which waits for the others.
int in_a_set(gz::Session& session) {
    auto set = gz::ProcessSet::create([&] {
        std::vector<int> ranks(static_cast<std::size_t>(session.size()) - 1);
        std::iota(ranks.begin(), ranks.end(), 1);
        return ranks;
    }());
    return repeat(session, [&](gz::Session&, int number) {
        auto numbers = ones(session);
        if (session.rank() > 0)
            gz::allreduce(numbers, {.name = fmt::format("only{}", number), .process_set = set});
        gz::barrier();
        require_equal(numbers.back(),
                      session.rank() > 0 ? static_cast<float>(session.size() - 1) : 1,
                      "allreduce in a set");
    });
}

/// Allreduces while rank 0 has joined.
int beside_a_joined_rank(gz::Session& session) {
    return repeat(session, [&](gz::Session&, int number) {
        auto numbers = ones(session);
        if (session.rank() > 0) gz::allreduce(numbers, {.name = fmt::format("only{}", number)});
        gz::join();
        require_equal(numbers.back(),
                      session.rank() > 0 ? static_cast<float>(session.size() - 1) : 1,
                      "allreduce beside a joined rank");
    });
}

void sum(const gz::Session& session, std::span<float> numbers, int number) {
    gz::allreduce(numbers, {.name = fmt::format("only{}", number)});
    require_equal(numbers.back(), static_cast<float>(session.size()), "allreduce");
}

/// One kind of operation, so that the faults befall that.
const std::map<std::string, Step> operations = {
    {"allreduce",
     [](gz::Session& session, int number) {
         auto numbers = ones(session);
         sum(session, numbers, number);
     }},
    {"broadcast",
     [](gz::Session& session, int number) {
         const int root = number % session.size();
         std::vector<int> numbers(std::max<std::size_t>(bytes / sizeof(int), 1), session.rank());
         gz::broadcast(numbers, root, {.name = fmt::format("only{}", number)});
         require_equal(numbers.back(), root, "broadcast");
     }},
    {"all_gather",
     [](gz::Session& session, int number) {
         auto numbers = ones(session);
         const auto rows =
             gz::all_gather(numbers, {.name = fmt::format("only{}", number)}).as<float>();
         require_equal(rows.size(), numbers.size() * static_cast<std::size_t>(session.size()),
                       "all_gather");
     }},
    {"all_to_all",
     [](gz::Session& session, int number) {
         auto numbers = ones(session);
         numbers.resize(numbers.size() / static_cast<std::size_t>(session.size()) *
                        static_cast<std::size_t>(session.size()));
         const auto received =
             gz::all_to_all(numbers, {}, {.name = fmt::format("only{}", number)}).as<float>();
         require_equal(received.size(), numbers.size(), "all_to_all");
     }},
    {"reduce_scatter",
     [](gz::Session& session, int number) {
         auto numbers = ones(session);
         const auto sum =
             gz::reduce_scatter(numbers, {.name = fmt::format("only{}", number)}).as<float>();
         require_equal(sum.front(), static_cast<float>(session.size()), "reduce_scatter");
     }},
    {"adasum",
     [](gz::Session& session, int number) {
         auto numbers = ones(session);
         gz::allreduce(numbers,
                       {.name = fmt::format("only{}", number), .op = gz::ReduceOp::adasum});
         require_equal(numbers.back(), 1.0f, "adasum");  // the mean of equals
     }},
    {"in_an_arena",
     [](gz::Session& session, int number) {
         gz::GradientArena arena(4 * std::max(bytes, std::size_t{1} << 10));
         std::pmr::vector<float> numbers(std::max(bytes / sizeof(float), std::size_t{1}), 1,
                                         &arena);
         sum(session, numbers, number);
     }},
    {"shared_in_place",
     [](gz::Session& session, int number) {
         auto numbers = ones(session);
         const gz::TensorView view(numbers);
         const auto registration = gz::share({&view, 1});
         sum(session, numbers, number);
     }},
    {"group",
     [](gz::Session& session, int number) {
         auto one = ones(session), two = ones(session);
         gz::grouped_allreduce(std::array<gz::TensorView, 2>{one, two},
                               {.name = fmt::format("only{}", number)});
         require_equal(two.back(), static_cast<float>(session.size()), "grouped_allreduce");
     }},
};

/// Returns when all ranks have come. A rank that is slow to leave may find the others gone already.
void wait_for_all(gz::Session& session) {
    try {
        gz::barrier();
    } catch (const gz::Error& error) {
        say_error(session, "barrier", error);
        throw;
    }
}

/// A rank is killed while the others wait for it: which one, and when, depends on BYTES.
int killed(gz::Session& session) {
    wait_for_all(session);
    float number = 1, another = 1;
    if (session.rank() == static_cast<int>(bytes % static_cast<std::size_t>(session.size()))) {
        stay_away(static_cast<int>(bytes % 50));
        say(fmt::format(R"({{"killed": {}, "ms": {:.3f}}})", session.rank(), now_ms()));
        ::kill(getpid(), SIGKILL);
    }
    try {  // it may be dead before this is submitted
        const auto pending = gz::allreduce_async(another, {.name = "pending"});
        try {
            gz::allreduce(number, {.name = "grad7"});
        } catch (const gz::Error& error) {
            say_error(session, "grad7", error);
        }
        pending.wait();
    } catch (const gz::Error& error) {
        say_error(session, "pending", error);
        throw;
    }
    return 0;
}

/// The last rank ends in some way; the others wait for it, say what they hear, and linger.
int ends(gz::Session& session, const std::function<void()>& end) {
    float number = 1;
    try {
        gz::barrier();  // which a slow rank may still be in when the last one ends
        if (session.rank() == session.size() - 1) end();
        gz::allreduce(number, {.name = "grad7"});
    } catch (const gz::Error& error) {
        say_error(session, "grad7", error);
        if (error.code() == gz::ErrorCode::rank_died) stay_away(3000);
        say(fmt::format(R"({{"rank": {}, "lingers": true}})", session.rank()));
        throw;
    }
    return 0;
}

[[noreturn]] void exit_from_a_thread() {
    std::thread([] { std::exit(0); }).detach();
    for (;;) stay_away(1000);
}

/// Calls exit() in its own code that the library runs, on a library thread, when an operation is
/// complete.
[[noreturn]] void exit_in_a_deleter(const gz::Session& session) {
    static float out = 1, in = 0;
    const auto sent = gz::send_async(out, session.rank());
    gz::recv_async(in, session.rank(),
                   {.keep_alive = std::shared_ptr<void>(&in, [](void*) { std::exit(0); })});
    for (;;) stay_away(1000);
}

/// And in a log callback, while the library has more to say: of an operation that fails so, from
/// another thread.
[[noreturn]] void exit_in_a_log_callback() {
    static int lonely = 1;
    gz::allreduce_async(lonely, {.name = "lonely"});
    gz::set_log_callback([](gz::LogLevel, std::string_view) { std::exit(3); });
    gz::log_message(gz::LogLevel::error, "enough");
    std::abort();
}

/// Takes a while over it, after the death of the last rank.
int save_checkpoint(gz::Session& session, std::chrono::milliseconds limit, int seconds) {
    float number = 1;
    try {
        gz::barrier();
        if (session.rank() == session.size() - 1) _exit(5);
        gz::allreduce(number, {.name = "grad7"});
    } catch (const gz::RankDied& error) {
        const gz::ExitHold hold(limit);
        say_error(session, "grad7", error);
        for (int tenth = 0; tenth < 10 * seconds; ++tenth) stay_away(100);
        say(fmt::format(R"({{"rank": {}, "checkpoint": "whole"}})", session.rank()));
        throw;
    }
    return 0;
}

/// The last rank ends; rank 0, which receives from it, leaves, and rank 1, which receives from rank
/// 0, does so too. The one before the last is late, and says whom it hears of.
int falls(gz::Session& session, const std::function<void()>& end,
          const std::function<void()>& leave) {
    const int last = session.size() - 1, rank = session.rank();
    float number = 1;
    gz::barrier();
    if (rank == last) return end(), 0;
    const bool is_late = rank == last - 1;
    try {
        if (is_late) {
            stay_away(2000);
            gz::allreduce(number, {.name = "late"});
        } else {
            gz::recv(number, rank == 0 ? last : rank - 1);
        }
    } catch (const gz::Error& error) {
        if (!is_late) leave();
        say_error(session, "late", error);
    }
    return 0;
}

/// Destroys the session while an exception leaves its block, which the session cannot know.
void unwind(gz::Session& session) try {
    const gz::Session inner(std::move(session));
    throw std::runtime_error("enough");
} catch (const std::runtime_error&) {
    _exit(0);
}

using Scene = std::function<int(gz::Session&)>;

const std::map<std::string, Scene> scenes = {
    {"train", train},
    {"in_a_set", in_a_set},
    {"beside_a_joined_rank", beside_a_joined_rank},
    {"killed", killed},
    {"saves", [](gz::Session& session) { return save_checkpoint(session, 30s, 2); }},
    {"saves_for_ever", [](gz::Session& session) { return save_checkpoint(session, 1s, 1000); }},
    {"falls_closed",
     [](gz::Session& session) {
         return falls(
             session, [] {}, [] { throw; });
     }},
    {"falls_closed_unwinding",
     [](gz::Session& session) {
         return falls(
             session, [] {}, [&] { unwind(session); });
     }},
    {"falls_killed",
     [](gz::Session& session) {
         return falls(
             session, [] { ::kill(getpid(), SIGKILL); }, [] { _exit(6); });
     }},
    {"crash", [](gz::Session& session) { return ends(session, [] { std::abort(); }); }},
    {"quick_exit", [](gz::Session& session) { return ends(session, [] { _exit(5); }); }},
    {"late_exit",
     [](gz::Session& session) {
         return ends(session, [] {
             std::this_thread::sleep_for(1s);
             _exit(5);
         });
     }},
    {"exit", [](gz::Session& session) { return ends(session, [] { std::exit(0); }); }},
    {"exit_from_a_thread", [](gz::Session& session) { return ends(session, exit_from_a_thread); }},
    {"exit_failing", [](gz::Session& session) { return ends(session, [] { std::exit(3); }); }},
    {"exit_in_a_deleter",
     [](gz::Session& session) {
         return ends(session, [&session] { exit_in_a_deleter(session); });
     }},
    {"exit_in_a_log_callback",
     [](gz::Session& session) { return ends(session, exit_in_a_log_callback); }},
    {"throw",
     [](gz::Session& session) {
         return ends(session, [] { throw std::runtime_error("no such file data.bin"); });
     }},
    {"leave",
     [](gz::Session& session) { return ends(session, [&session] { session.leave("enough"); }); }},
};

/// Waits until that rank has begun, as it says in the file, and its process has ended: mpirun would
/// end a job in which some ranks had called MPI_Init by then.
void await_end_of(int rank, const char* file) {
    for (int pid = 0; pid == 0 || ::kill(pid, 0) == 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
        std::ifstream said(file);
        for (std::string line; pid == 0 && std::getline(said, line);)
            if (int who = -1, its = 0;
                std::sscanf(line.c_str(), R"({"begins": true, "rank": %d, "pid": %d})", &who,
                            &its) == 2 &&
                who == rank)
                pid = its;
    }
}

/// Runs a rank of a job whose last rank makes its session when another rank has found its process,
/// or never. Ranks report the warnings about that.
int start_late(std::string_view scene, const char* file) {
    const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK")),
              size = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
    int level = 0;
    const bool own_mpi = scene == "late_session";
    if (own_mpi) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    gz::set_log_callback([=](gz::LogLevel, std::string_view text) {
        say(fmt::format(R"({{"rank": {}, "warning": "{}"}})", rank, escaped(text)));
        const std::string_view sign = "has made no session (pid ";
        if (const auto found = text.find(sign);
            found != std::string_view::npos && scene.starts_with("late"))
            ::kill(std::atoi(text.substr(found + sign.size()).data()), SIGUSR1);
        if (text.find("no process here") != std::string_view::npos) _exit(3);
    });
    if (rank == size - 1) {
        if (scene == "gone") _exit(0);
        sigset_t signals;
        int signal = 0;
        sigemptyset(&signals);
        sigaddset(&signals, SIGUSR1);
        sigprocmask(SIG_BLOCK, &signals, nullptr);
        sigwait(&signals, &signal);
    }
    if (scene == "gone") await_end_of(size - 1, file);
    const int code = gz::run(nullptr, nullptr, train);
    if (own_mpi) MPI_Finalize();
    return code;
}

/// Allocations count from the session's beginning, which needs more the more runs on the host.
int run_short_of(const std::string& what, const Scene& body) {
    const bool is_for_body = what.starts_with("allocation");
    int level = 0, rank = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!is_for_body) gz::test::make_scarce(what, rank);
    const int code = gz::run(nullptr, nullptr, [&](gz::Session& session) {
        if (is_for_body) gz::test::make_scarce(what, rank);
        return body(session);
    });
    if (code == 0) MPI_Finalize();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string scene = argc > 1 ? argv[1] : "";
    if (scene == "points") {
        for (int point = 0; point < static_cast<int>(gz::base::Failpoint::count); ++point)
            say(std::string(name_of(static_cast<gz::base::Failpoint>(point))));
        return 0;
    }
    if (argc < 4) return 2;
    bytes = std::strtoull(argv[2], nullptr, 10);
    output = open(argv[3], O_WRONLY | O_APPEND | O_CLOEXEC);
    say(fmt::format(R"({{"begins": true, "rank": {}, "pid": {}}})",
                    std::getenv("OMPI_COMM_WORLD_RANK"), getpid()));
    if (scene == "late_session" || scene == "late_init" || scene == "gone" || scene == "never")
        return start_late(scene, argv[3]);
    const auto only = operations.find(scene);
    const auto body = only == operations.end() ? scenes.at(scene) : [&](gz::Session& session) {
        // As if MPI had written to a rank that has just died.
        if (session.size() > session.local_size()) raise(SIGPIPE);
        return repeat(session, only->second);
    };
    return argc > 4 ? run_short_of(argv[4], body) : gz::run(&argc, &argv, body);
}
