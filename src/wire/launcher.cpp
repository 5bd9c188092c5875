#include "wire/launcher.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <string>

#include "base/config.hpp"
#include "base/log.hpp"
#include "base/parse.hpp"

namespace guozhuang::wire {
namespace {

/// A launcher that may start processes without MPI, and the variables that it sets in each.
struct OtherLauncher {
    const char* name;
    const char* size;  ///< how many processes there are; null: it does not say
    const char* rank;
    const char* instead;
};

constexpr const char* by_mpirun = "start them by mpirun";
constexpr OtherLauncher other_launchers[] = {
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
     "start them by mpirun, or by srun --mpi=pmix where Slurm and MPI have it"},
    {"torchrun", "WORLD_SIZE", "RANK", by_mpirun},
    {"Horovod's launcher", "HOROVOD_SIZE", "HOROVOD_RANK", by_mpirun},
    {"flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "start them by mpirun, or by flux run -o mpi"},
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", by_mpirun},
    {"MVAPICH's launcher", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", by_mpirun},
    {"Intel MPI's launcher", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", by_mpirun},
    {"PALS", nullptr, "PALS_RANKID", by_mpirun},
    {"aprun", nullptr, "ALPS_APP_PE", by_mpirun},
};

std::optional<int> number_in(const char* name) {
    return base::parse_number<int>(base::environment(name).value_or(""));
}

std::optional<Launcher> launcher_of(const OtherLauncher& other) {
    const auto rank = number_in(other.rank);
    if (!rank || *rank < 0) return std::nullopt;
    if (other.size == nullptr) return Launcher{fmt::format("{}={}", other.rank, *rank), *rank + 1};
    const auto size = number_in(other.size);
    if (!size) return std::nullopt;
    return Launcher{fmt::format("{}={}, {}={}", other.size, *size, other.rank, *rank), *size};
}

constexpr const char* allowed = "GUOZHUANG_ALLOW_SINGLE=1 makes each of them a job of its own";

}  // namespace

// These variables prove how many processes were started: Open MPI and its launchers set
// OMPI_COMM_WORLD_SIZE; MPICH, Intel MPI and their relatives PMI_SIZE; launchers that speak PMIx at
// least PMIX_RANK. The largest size counts.
std::optional<Launcher> find_mpi_launcher() {
    std::optional<Launcher> launcher;
    const auto consider = [&](const char* name, int more) {
        const auto value = number_in(name);
        if (value && (!launcher || *value + more > launcher->ranks))
            launcher = {fmt::format("{}={}", name, *value), *value + more};
    };
    consider("OMPI_COMM_WORLD_SIZE", 0);
    consider("PMI_SIZE", 0);
    consider("PMIX_RANK", 1);
    consider("PMI_RANK", 1);
    return launcher;
}

// gzrun sets the first to its --min-np, or 0; Open MPI's launcher the others.
std::string why_survivors_end() {
    if (const auto least_ranks = base::environment("GZRUN")) {
        if (*least_ranks != "0") return {};
        return "SessionOptions::time_to_shrink: gzrun ends the ranks that are left some time after "
               "one has died, unless it gets --min-np";
    }
    if (!base::environment("OMPI_COMM_WORLD_SIZE") ||
        base::environment("OMPI_MCA_orte_enable_recovery") ||
        base::environment("OMPI_MCA_mpi_ft_enable"))
        return {};
    return "SessionOptions::time_to_shrink: mpirun ends all ranks a second after one has died, and "
           "the job with them, unless it gets --enable-recovery (Open MPI 5: --with-ft ulfm); "
           "gzrun --min-np lets them live under any MPI";
}

void refuse_lone_job(std::string_view mpi) {
    if (const auto launcher = find_mpi_launcher(); launcher && launcher->ranks > 1)
        throw Error(ErrorCode::unavailable,
                    fmt::format("the launcher started at least {} processes ({}), but {} sees only "
                                "this one: mpirun and the MPI library that this program is linked "
                                "to do not belong together; use the mpirun of {} ({})",
                                launcher->ranks, launcher->evidence, mpi, mpi, allowed));
    // An mpirun of one process, perhaps within a job step of several.
    if (number_in("OMPI_COMM_WORLD_SIZE") == 1 || number_in("PMI_SIZE") == 1) return;
    std::string doubt;
    for (const auto& other : other_launchers) {
        const auto launcher = launcher_of(other);
        if (!launcher || launcher->ranks <= 1) continue;
        const auto problem = fmt::format(
            "{} has started at least {} processes ({}), but this one is alone in its job, since "
            "{} does not know the others: {} ({})",
            other.name, launcher->ranks, launcher->evidence, mpi, other.instead, allowed);
        // Users also set WORLD_SIZE and RANK themselves, for torch.distributed.
        if (std::string_view(other.size == nullptr ? "" : other.size) == "WORLD_SIZE" &&
            !base::environment("TORCHELASTIC_RUN_ID"))
            doubt = "it seems that " + problem;
        else
            throw Error(ErrorCode::unavailable, problem);
    }
    if (!doubt.empty()) base::log_warning(doubt);
}

}  // namespace guozhuang::wire
