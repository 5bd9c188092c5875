// How the transport and the user's own MPI share a process; a process can see MPI begin and end
// once only, so each scene is a program run:
//   mpi_lifecycle SCENE, which ends with 0 if all is as it should be.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <guozhuang/error.hpp>
#include <map>
#include <mpi.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/mpi/mpi_transport.hpp"

using namespace guozhuang;

namespace {

bool mpi_says(int (*question)(int*)) {
    int answer = 0;
    question(&answer);
    return answer != 0;
}

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

/// A message to the other rank and one from there, of several pieces.
void exchange(wire::Transport& transport) {
    constexpr wire::Tag data{0, wire::Lane::host_data, 0};
    const std::vector<std::byte> out(std::size_t{65} << 20, std::byte(1 + transport.rank()));
    std::vector<std::byte> in(out.size());
    auto received = transport.receive(1 - transport.rank(), data, in);
    auto sent = transport.send(1 - transport.rank(), data, out);
    for (auto* ticket : {&received, &sent})
        base::wait_until(transport.doorbell(), transport.wait_settings(),
                         [&] { return transport.test(*ticket); });
    require(in.front() == std::byte(2 - transport.rank()) && in.back() == in.front(),
            "the other rank's bytes arrive");
}

/// The user runs MPI below MPI_THREAD_MULTIPLE, before and after us.
void user_owns_mpi() {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    const auto transport = wire::connect();
    exchange(*transport);
    transport->close();
    require(!mpi_says(MPI_Finalized), "MPI runs on after close");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

/// The library starts MPI and finalises it at the exit of the process; the user need not know.
/// mpirun would complain otherwise.
void library_owns_mpi() {
    wire::connect()->close();
    require(mpi_says(MPI_Initialized) && !mpi_says(MPI_Finalized), "MPI runs on after close");
    wire::connect()->close();
    require(mpi_says(MPI_Initialized) && !mpi_says(MPI_Finalized),
            "MPI runs on after the second close");
}

/// The library starts MPI, the user finalises it.
void user_finalises() {
    wire::connect()->close();
    MPI_Finalize();
    try {
        wire::connect();
        require(false, "connecting after MPI_Finalize fails");
    } catch (const Error& error) {
        require(error.code() == ErrorCode::unavailable,
                "connecting after MPI_Finalize is 'unavailable'");
    }
}

/// No launcher: one rank, and MPI stays untouched.
void alone() {
    const auto transport = wire::connect();
    require(transport->size() == 1 && transport->rank() == 0, "one rank");
    require(!mpi_says(MPI_Initialized), "MPI is not initialised");
    transport->close();
}

/// The environment of a launcher of several processes, but MPI knows nothing of it.
void foreign_launcher() {
    try {
        wire::connect();
        require(false, "a foreign launcher is detected");
    } catch (const Error& error) {
        require(error.code() == ErrorCode::unavailable, "a foreign launcher is 'unavailable'");
        require(std::string_view(error.what()).find("PMI_SIZE=4") != std::string_view::npos,
                "the error names the evidence");
    }
}

/// An mpirun of one process.
void one_rank() {
    const auto transport = wire::connect();
    require(transport->size() == 1, "one rank");
    transport->close();
}

/// Variables of launchers that MPI need not know, and what an error says of them.
void other_launchers() {
    using Variables = std::vector<std::pair<const char*, const char*>>;
    const auto problem_of = [](const Variables& variables, bool allow_single = false) {
        for (const auto& [name, value] : variables) setenv(name, value, 1);
        std::string problem;
        try {
            wire::MpiOptions options;
            options.config.allow_single = allow_single;
            const auto transport = wire::connect(options);
            require(transport->size() == 1, "one rank");
            transport->close();
        } catch (const Error& error) {
            require(error.code() == ErrorCode::unavailable, "it is 'unavailable'");
            problem = error.what();
        }
        for (const auto& [name, value] : variables) unsetenv(name);
        return problem;
    };
    const std::pair<Variables, const char*> several[] = {
        {{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}},
         "srun has started at least 2 processes (SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=0)"},
        {{{"WORLD_SIZE", "2"},
          {"RANK", "0"},
          {"JSM_NAMESPACE_SIZE", "2"},
          {"JSM_NAMESPACE_RANK", "0"}},
         "jsrun has"},
        {{{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"TORCHELASTIC_RUN_ID", "none"}}, "torchrun has"},
        {{{"HOROVOD_SIZE", "2"}, {"HOROVOD_RANK", "1"}}, "Horovod's launcher has"},
        {{{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "1"}}, "flux run has"},
        {{{"JSM_NAMESPACE_SIZE", "2"}, {"JSM_NAMESPACE_RANK", "1"}}, "jsrun has"},
        {{{"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_RANK", "1"}}, "MVAPICH's"},
        {{{"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}}, "Intel MPI's"},
        {{{"PALS_RANKID", "1"}}, "PALS has started at least 2 processes (PALS_RANKID=1)"},
        {{{"ALPS_APP_PE", "7"}}, "aprun has started at least 8 processes"}};
    for (const auto& [variables, text] : several) {
        const auto problem = problem_of(variables);
        require(problem.find(text) != std::string::npos, text);
        require(problem.find("GUOZHUANG_ALLOW_SINGLE=1") != std::string::npos, "the way out");
        require(problem_of(variables, /*allow_single=*/true).empty(), "it is allowed");
    }
    const Variables one_process[] = {{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}},
                                     {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
                                     {{"WORLD_SIZE", "4"}},
                                     {{"WORLD_SIZE", "4"}, {"RANK", "1"}},  // a warning
                                     {{"PALS_RANKID", "0"}}};
    for (const auto& variables : one_process)
        require(problem_of(variables).empty(), "no proof of several processes");
}

/// A job that is over for both ranks: receives are taken back, a long send is not, and the process
/// still ends.
void abandoned() {
    static std::vector<std::byte> lent(1u << 20), kept(8u << 20);
    constexpr wire::Tag data{0, wire::Lane::host_data, 0};
    int level = 0;
    // Below this level no message goes through MPI.
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    const auto receiver = wire::connect(), sender = wire::connect(), waiting = wire::connect();
    receiver->receive(1 - receiver->rank(), data, lent);
    require(receiver->abandon(), "a receive that has not begun is taken back");
    sender->send(1 - sender->rank(), data, kept);
    require(!sender->abandon(), "a long send that nobody receives keeps its memory");
    try {
        receiver->poll({});
        require(false, "what is asked for later fails");
    } catch (const Error& error) {
        require(error.code() == ErrorCode::aborted, "it fails with 'aborted'");
    }
    if (waiting->rank() == 0) return waiting->abort({.rank = 0, .text = "mine"});
    try {
        base::wait_until(waiting->doorbell(), waiting->wait_settings(), [] { return false; });
    } catch (const Error& error) {
        require(error.ranks() == std::vector<int>{0} &&
                    std::string_view(error.what()).ends_with(": mine"),
                "the other rank's words arrive");
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<void()>> scenes{
        {"user_owns_mpi", user_owns_mpi},
        {"library_owns_mpi", library_owns_mpi},
        {"user_finalises", user_finalises},
        {"abandoned", abandoned},
        {"alone", alone},
        {"foreign_launcher", foreign_launcher},
        {"one_rank", one_rank},
        {"other_launchers", other_launchers}};
    require(argc == 2 && scenes.contains(argv[1]), "the argument names a scene");
    scenes.at(argv[1])();
    std::printf("the scene has ended\n");
    std::fflush(stdout);
    // A rank that leaves early would be the death that the other one reports, and where it leaves
    // without MPI_Finalize, mpirun ends the other one.
    if (mpi_says(MPI_Initialized) && !mpi_says(MPI_Finalized)) MPI_Barrier(MPI_COMM_WORLD);
}
