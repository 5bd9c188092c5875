// The rank and job of a process, as launchers give them. tests/faults covers a rank that makes no
// session.
#include "wire/start_watch.hpp"

#include <numeric>

#include "base/error_text.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang::wire;

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
