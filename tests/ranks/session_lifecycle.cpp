// How a Session begins and ends around the user's own MPI. A process can see MPI begin and end once
// only, so each scene is a run of its own:
//   session_lifecycle SCENE, which ends with 0 if all is as it should be.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <guozhuang/interop/mpi.hpp>
#include <map>
#include <memory>
#include <mpi.h>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gz = guozhuang;

namespace {

void require(bool condition, const std::string& what) {
    if (condition) return;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
    std::exit(1);
}

int mpi_rank(MPI_Comm communicator) {
    int rank = 0;
    MPI_Comm_rank(communicator, &rank);
    return rank;
}

/// Every operation that differs in how it waits: blocking, asynchronous, point to point, long.
void work(gz::Session& session) {
    std::vector<float> numbers(100'000, 1);
    const auto handle = gz::allreduce_async(numbers, {.session = &session});
    int sum = session.rank();
    gz::allreduce(sum, {.session = &session});
    require(sum == session.size() * (session.size() - 1) / 2, "the sum of the ranks");
    const int right = (session.rank() + 1) % session.size(),
              left = (session.rank() + session.size() - 1) % session.size();
    int out = session.rank(), in = -1;
    const auto sent = gz::send_async(out, right, {.session = &session});
    gz::recv(in, left, {.session = &session});
    sent.wait();
    require(in == left, "the left neighbour's message");
    require(handle.wait_for(std::chrono::minutes(1)) &&
                numbers.back() == static_cast<float>(session.size()),
            "the long sum");
    gz::barrier({.session = &session});
}

/// Long sums in sets that neighbours share, and in the whole job, begun and waited for in another
/// order by each rank.
void work_in_sets(gz::Session& session) {
    std::vector<gz::ProcessSet> sets{&session};
    for (int rank = 0; rank < session.size(); ++rank)
        sets.push_back(gz::ProcessSet::create({rank, (rank + 1) % session.size()}));
    std::vector<std::vector<float>> numbers(sets.size(), std::vector<float>(100'000, 1));
    for (int round = 0; round < 10; ++round) {
        std::vector<gz::Handle> handles(sets.size());
        const auto nth = [&](std::size_t i, int step) {
            return (i * static_cast<std::size_t>(step) +
                    static_cast<std::size_t>(session.rank() + round)) %
                   sets.size();
        };
        for (std::size_t i = 0; i < sets.size(); ++i)
            if (const auto set = nth(i, 3); sets[set].contains(session.rank()))
                handles[set] = gz::allreduce_async(
                    numbers[set], {.op = gz::ReduceOp::average, .process_set = sets[set]});
        for (std::size_t i = 0; i < sets.size(); ++i)
            if (const auto set = nth(i, 1); handles[set]) handles[set].wait();
    }
    for (std::size_t i = 0; i < sets.size(); ++i)
        require(numbers[i].back() == 1, "the averages in sets");
    // The other sets end with the session.
    for (std::size_t i = 1; i < sets.size(); i += 2) sets[i].remove();
}

/// Owners that operations of a set release when they complete may call the library, even while the
/// data of a long sum moves.
void call_from_deleters(const gz::Session& session) {
    std::vector<int> everybody(static_cast<std::size_t>(session.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    auto set = gz::ProcessSet::create(everybody);
    std::vector<float> numbers(4'000'000, 1);
    std::vector<int> words(20, 1);
    std::atomic<int> sum{0};
    std::vector<gz::Handle> handles{gz::allreduce_async(numbers, {.name = "long"})};
    for (auto& word : words) {
        const std::shared_ptr<void> kept(&word, [&sum](void*) {
            int one = 1;
            gz::allreduce(one);
            sum += one;
        });
        handles.push_back(gz::allreduce_async(word, {.keep_alive = kept, .process_set = set}));
    }
    for (const auto& handle : handles) handle.wait();
    gz::barrier();
    require(sum == session.size() * static_cast<int>(words.size()), "the sums in deleters");
    set.remove();
}

/// Ten sessions one after the other, each with a few shared ones inside.
void again_and_again() {
    for (int i = 0; i < 10; ++i) {
        gz::Session session;
        gz::init();
        gz::Session second;
        work(second);
        second.close();
        gz::shutdown();
        require(gz::is_initialized(), "the first session still holds it");
        work(session);
        session.close();
        require(!gz::is_initialized(), "nothing is left");
    }
}

/// shutdown() is forgotten.
void never_closed() {
    gz::init();
    work(gz::Session::current());
}

/// The user's MPI at one level, before and after the session.
void under_user_mpi(int level) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, level, &provided);
    for (int i = 0; i < 3; ++i) {
        gz::Session session;
        work(session);
        work_in_sets(session);
        call_from_deleters(session);
        int one = 1;
        MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        require(one == session.size(), "MPI's own sum");
    }
    int finalised = 0;
    MPI_Finalized(&finalised);
    require(finalised == 0, "the user's MPI is not finalised by us");
    MPI_Finalize();
}

/// Where ranks share no memory, MPI must allow calls on any thread: every rank is told which line
/// to change, and may go on.
void needs_threads(int level) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, level, &provided);
    const auto host = std::to_string(mpi_rank(MPI_COMM_WORLD) % 2);
    for (const auto& [variable, value] :
         {std::pair("GUOZHUANG_HOST", host.c_str()), std::pair("GUOZHUANG_SHARED_MEMORY", "0")}) {
        setenv(variable, value, 1);
        try {
            gz::Session session;
            require(false, "a session without threads fails");
        } catch (const gz::Error& error) {
            const std::string_view text = error.what();
            require(error.code() == gz::ErrorCode::unavailable && error.ranks().size() == 3,
                    error.what());
            require(text.starts_with("MPI runs below MPI_THREAD_MULTIPLE on ranks 0,1,2"),
                    error.what());
            require(text.find("MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided)") !=
                        std::string::npos,
                    error.what());
        }
        unsetenv(variable);
    }
    gz::Session session;
    work(session);
    session.close();
    MPI_Finalize();
}
static_assert(!std::is_convertible_v<MPI_Comm, gz::MpiCommunicator> &&
                  !std::is_convertible_v<MPI_Comm*, gz::MpiCommunicator>,
              "a handle or its address is not taken for the other");

/// A session on the user's communicator; ranks follow it, and it may be freed at once.
void on_communicator(int (*colour)(int rank), int (*key)(int rank)) {
    MPI_Init(nullptr, nullptr);
    const int world_rank = mpi_rank(MPI_COMM_WORLD);
    MPI_Comm communicator = MPI_COMM_NULL;
    try {
        gz::Session session(nullptr, nullptr,
                            {.mpi_communicator = gz::mpi_communicator(communicator)});
        require(false, "a communicator without ranks is refused");
    } catch (const gz::Error& error) {
        require(error.code() == gz::ErrorCode::invalid_argument, error.what());
    }
    MPI_Comm_split(MPI_COMM_WORLD, colour(world_rank), key(world_rank), &communicator);
    const int rank = mpi_rank(communicator);
    int size = 0;
    MPI_Comm_size(communicator, &size);
    {
        gz::Session session(nullptr, nullptr,
                            {.mpi_communicator = gz::mpi_communicator(communicator)});
        MPI_Comm_free(&communicator);
        require(session.rank() == rank && session.size() == size,
                "rank and size are the communicator's");
        work(session);
    }
    gz::Session world;
    require(world.rank() == world_rank, "the next session is the world's again");
    work(world);
    world.close();
    MPI_Finalize();
}

void reversed() {
    on_communicator([](int) { return 0; }, [](int rank) { return -rank; });
}

void odd_even() {
    on_communicator([](int rank) { return rank % 2; }, [](int rank) { return rank; });
}

/// Rank 1 shuts down early; the others are told when they need it, and go on among themselves.
void early_leaver() {
    gz::Session session;
    if (session.rank() == 1) return session.close();
    std::vector<float> numbers(10);
    try {
        gz::allreduce(numbers, {.name = "needs all"});
        require(false, "an operation that waits for rank 1 fails");
    } catch (const gz::Error& error) {
        require(error.code() == gz::ErrorCode::departed && error.ranks() == std::vector<int>{1},
                error.what());
        require(std::string(error.what()).find("rank 1 has shut down") != std::string::npos,
                error.what());
    }
    session.rank() == 0 ? gz::send(numbers, 2) : gz::recv(numbers, 0);
}

/// Rank 1 is leaving by an exception, the set too.
void require_left(const gz::ProcessSet& set) {
    try {
        gz::barrier({.process_set = set});
        require(false, "what waits for rank 1 in the set fails");
    } catch (const gz::Error& error) {
        const std::string_view why =
            "rank 1 has left process set 0,1 (an exception is leaving its session); barrier";
        require(std::string_view(error.what()).starts_with(why), error.what());
    }
}

/// An exception leaves rank 1's session: the others are told at once, and their own end does not
/// wait either. mpirun reports the job as failed, as it should, so what counts is the line that
/// rank 1 prints when both others have reported that all is as it should be.
void left_by_exception() {
    int word = 0;
    try {
        const gz::Session session;
        const auto set = gz::ProcessSet::create({0, 1});
        if (session.rank() == 1) throw std::runtime_error("mine");
        if (session.rank() == 0) require_left(set);
        gz::barrier();
    } catch (const gz::Error& error) {
        const bool why =
            std::string_view(error.what())
                .starts_with("rank 1 has shut down (an exception is leaving its session)");
        require(why && !gz::is_initialized() && error.ranks() == std::vector<int>{1}, error.what());
        MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        // Without this, mpirun would end them all before rank 1 has spoken.
        MPI_Recv(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } catch (const std::runtime_error&) {
        require(!gz::is_initialized(), "nothing is left");
        for (const int other : {0, 2})
            MPI_Recv(&word, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        std::puts("ranks 0 and 2 have been told");
        std::fflush(stdout);
        for (const int other : {0, 2}) MPI_Send(&word, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
    }
    std::exit(1);
}

/// Rank 1 quits by an exception with an operation in flight that all have begun: nobody waits for
/// ever, neither for that nor for the next one, nor at the end.
void left_in_flight() {
    int word = 0;
    std::vector<float> first(1000, 1), next(10, 1);
    try {
        gz::Session session;
        const auto handle = gz::allreduce_async(first);
        if (session.rank() == 1) throw std::runtime_error("mine");
        try {
            handle.wait();
            require(first.front() == 3, "what was begun is right");
            gz::allreduce(next);
            require(false, "nothing can be done without rank 1");
        } catch (const gz::Error& error) {
            require(error.ranks() == std::vector<int>{1}, error.what());
            try {
                session.close();
            } catch (const gz::Error& again) {  // only if rank 1 had to end the job
                require(again.code() == gz::ErrorCode::departed && again.ranks() == error.ranks(),
                        again.what());
            }
        }
        MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } catch (const std::runtime_error& error) {
        require(std::string_view(error.what()) == "mine", error.what());
        for (const int other : {0, 2})
            MPI_Recv(&word, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        std::puts("ranks 0 and 2 have been told");
        std::fflush(stdout);
        for (const int other : {0, 2}) MPI_Send(&word, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
    }
    std::_Exit(1);
}

/// Rank 1 has no room for a result, in the middle of an operation: the others do not wait for it,
/// and know why.
void out_of_memory() {
    gz::Session session;
    std::vector<float> numbers(std::size_t{8} << 20, 1);
    gz::barrier();
    if (session.rank() == 1) {
        std::size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        const rlimit little{
            .rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (16u << 20),
            .rlim_max = RLIM_INFINITY};
        setrlimit(RLIMIT_AS, &little);
    }
    int word = 0;
    try {
        gz::all_gather(numbers, {.name = "rows"});
        require(false, "an operation that rank 1 cannot finish fails");
    } catch (const gz::Error& error) {
        const auto expected =
            session.rank() == 1 ? gz::ErrorCode::out_of_memory : gz::ErrorCode::aborted;
        require(error.code() == expected && error.ranks() == std::vector<int>{1}, error.what());
        require(std::string(error.what()).find("all_gather 'rows': not enough memory") !=
                    std::string::npos,
                error.what());
    }
    if (session.rank() != 1) {
        MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        // Rank 1 is waited for, since mpirun ends all when the first one fails.
        MPI_Recv(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        for (const int other : {0, 2})
            MPI_Recv(&word, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        std::printf("all were told\n");
        std::fflush(stdout);
        for (const int other : {0, 2}) MPI_Send(&word, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
    }
    std::_Exit(1);
}

/// A process that a rank has started, directly or through a shell, is no rank.
void is_started_by_rank() {
    try {
        const gz::Session session;
        require(false, "it begins a session");
    } catch (const gz::Error& error) {
        require(error.code() == gz::ErrorCode::unavailable, "it is 'unavailable'");
        const auto text = std::string("was started by rank ") +
                          std::getenv("OMPI_COMM_WORLD_RANK") + " (process " +
                          std::getenv("STARTED_BY");
        require(std::string(error.what()).find(text) != std::string::npos, error.what());
    }
}

void starts_another() {
    gz::Session session;
    setenv("STARTED_BY", std::to_string(getpid()).c_str(), 1);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    require(std::system(("'" + program + "' is_started_by_rank").c_str()) == 0, "by a shell");
    require(std::system(("exec '" + program + "' is_started_by_rank").c_str()) == 0, "directly");
    work(session);
}

/// Everybody says who it is; rank 0 alone is heard.
void print_once() {
    gz::Session session;
    gz::print_once("said by rank " + std::to_string(session.rank()));
    gz::barrier();
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string_view, std::function<void()>> scenes = {
        {"again_and_again", again_and_again},
        {"never_closed", never_closed},
        {"mpi_single", [] { under_user_mpi(MPI_THREAD_SINGLE); }},
        {"mpi_funneled", [] { under_user_mpi(MPI_THREAD_FUNNELED); }},
        {"mpi_serialized", [] { under_user_mpi(MPI_THREAD_SERIALIZED); }},
        {"mpi_multiple", [] { under_user_mpi(MPI_THREAD_MULTIPLE); }},
        {"needs_threads_single", [] { needs_threads(MPI_THREAD_SINGLE); }},
        {"needs_threads_funneled", [] { needs_threads(MPI_THREAD_FUNNELED); }},
        {"needs_threads_serialized", [] { needs_threads(MPI_THREAD_SERIALIZED); }},
        {"reversed", reversed},
        {"odd_even", odd_even},
        {"early_leaver", early_leaver},
        {"left_by_exception", left_by_exception},
        {"left_in_flight", left_in_flight},
        {"out_of_memory", out_of_memory},
        {"print_once", print_once},
        {"starts_another", starts_another},
        {"is_started_by_rank", is_started_by_rank},
    };
    const auto scene = scenes.find(argc == 2 ? argv[1] : "");
    require(scene != scenes.end(), "the argument is a scene");
    scene->second();
}
