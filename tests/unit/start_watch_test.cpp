// The rank and job of a process, as launchers give them. tests/faults covers a rank that makes no
// session.
#include "wire/start_watch.hpp"

#include <csignal>
#include <numeric>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "base/error_text.hpp"
#include "base/wait.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/temporary_directory.hpp"

using namespace guozhuang::wire;
using namespace std::chrono_literals;

namespace {

/// A process of a job of two ranks that looks like one whose session is about to begin.
class StartingRank {
public:
    StartingRank(std::string program, const std::string& job, int rank) {
        std::vector<std::string> variables{job, "OMPI_COMM_WORLD_SIZE=2",
                                           "OMPI_COMM_WORLD_RANK=" + std::to_string(rank)};
        std::vector<char*> environment;
        for (auto& each : variables) environment.push_back(each.data());
        environment.push_back(nullptr);
        std::string seconds = "60";
        char* const arguments[] = {program.data(), seconds.data(), nullptr};
        REQUIRE(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments,
                            environment.data()) == 0);
    }
    ~StartingRank() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    StartingRank(const StartingRank&) = delete;
    StartingRank& operator=(const StartingRank&) = delete;

private:
    pid_t pid_ = 0;
};

/// Returns what this process says as such a rank, within 800 ms, before the limit ends it.
std::vector<std::string> said_by(int rank, const std::string& job,
                                 const StartWatch::Limits& limits) {
    const guozhuang::test::LogCapture log;
    const StartWatch watch(LaunchedRank{.job = {job}, .rank = rank, .size = 2, .local_size = 2},
                           limits, nullptr);
    guozhuang::base::wait_for_files({}, 800ms);
    return log.with("the start of the session");
}

}  // namespace

TEST_CASE("if all ranks have come the lowest says so, and no other, even after the limit") {
    const guozhuang::test::TemporaryDirectory directory;
    const std::string program = directory / "gz-starting";  // which is its thread's name, too
    std::filesystem::create_symlink("/bin/sleep", program);
    const auto job = "PMIX_NAMESPACE=start_watch_test" + std::to_string(getpid());
    const StartingRank zero(program, job, 0), one(program, job, 1);
    const auto said = said_by(0, job, {.warn = 100ms});
    REQUIRE_FALSE(said.empty());
    CHECK_THAT(said.front(),
               Catch::Contains("s on ranks 0,1; all have come, and wait for MPI and its network"));
    CHECK(said_by(1, job, {.warn = 100ms, .limit = 250ms}).empty());
}

TEST_CASE("launchers say in variables which rank of which job a process is") {
    const auto open_mpi = find_launched_rank({{"PMIX_NAMESPACE", "7"},
                                              {"PMIX_RANK", "2"},
                                              {"OMPI_COMM_WORLD_RANK", "2"},
                                              {"OMPI_COMM_WORLD_SIZE", "4"},
                                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}});
    REQUIRE(open_mpi);
    CHECK((open_mpi->rank == 2 && open_mpi->size == 4 && open_mpi->local_size == 3));
    const auto slurm = find_launched_rank({{"SLURM_JOB_ID", "7"},
                                           {"SLURM_STEP_ID", "0"},
                                           {"PMI_RANK", "1"},
                                           {"SLURM_STEP_NUM_TASKS", "2"}});
    REQUIRE(slurm);
    CHECK((slurm->rank == 1 && slurm->size == 2 && slurm->local_size == 0));
    CHECK(slurm->job != find_launched_rank({{"SLURM_JOB_ID", "7"},
                                            {"SLURM_STEP_ID", "1"},
                                            {"PMI_RANK", "1"},
                                            {"SLURM_STEP_NUM_TASKS", "2"}})
                            ->job);
}

TEST_CASE("a job of one, or one that nothing tells from others, has no rank to wait for") {
    CHECK_FALSE(find_launched_rank({}));
    CHECK_FALSE(find_launched_rank(
        {{"PMIX_NAMESPACE", "7"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
    CHECK_FALSE(find_launched_rank({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}));
    CHECK_FALSE(find_launched_rank(
        {{"PMIX_NAMESPACE", "7"}, {"OMPI_COMM_WORLD_RANK", "two"}, {"OMPI_COMM_WORLD_SIZE", "4"}}));
}

TEST_CASE("a message names more than twenty ranks by runs, and not more than twenty") {
    using guozhuang::base::list_ranks;
    std::vector<int> ranks(64);
    std::iota(ranks.begin(), ranks.end(), 0);
    CHECK(list_ranks(std::vector{2}) == "rank 2");
    CHECK(list_ranks(std::span(ranks).first(20)) ==
          "ranks 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19");
    CHECK(list_ranks(std::span(ranks).first(21)) == "ranks 0-20");
    ranks.erase(ranks.begin() + 17);
    CHECK(list_ranks(ranks) == "ranks 0-16,18-63");
    for (auto& rank : ranks) rank *= 10;
    CHECK(list_ranks(ranks) ==
          "ranks 0,10,20,30,40,50,60,70,80,90,100,110,120,130,140,150,160,180,190,200 and 43 more");
}
