#include "mpi_job.hpp"

#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "baselines/host_window.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

/// The two ranks add one to the word in turns; at an even number it is rank 0's turn.
template <class Barrier>
double round_trip(std::atomic_ref<std::uint32_t> word, std::uint32_t rank, const Barrier& barrier) {
    constexpr std::uint32_t batches = 50, rounds = 100;
    if (rank == 0) word = 0;
    barrier();
    std::vector<double> microseconds;
    std::uint32_t turn = rank;
    for (std::uint32_t batch = 0; batch < batches; ++batch) {
        const auto start = Clock::now();
        for (std::uint32_t round = 0; round < rounds; ++round, turn += 2) {
            while (word.load(std::memory_order_acquire) != turn) continue;
            word.store(turn + 1, std::memory_order_release);
        }
        microseconds.push_back(seconds_since(start) * 1e6 / rounds);
    }
    barrier();
    return quantile(microseconds, 0.5);
}

}  // namespace

MpiJob::MpiJob(int* argc, char*** argv, Callers callers) {
    const int wanted = callers == Callers::any ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
    int provided = 0;
    MPI_Init_thread(argc, argv, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiJob::~MpiJob() {
    rounds_.reset();
    MPI_Finalize();
}

void MpiJob::align_in_memory() {
    rounds_ = std::make_unique<HostRounds>(*this);
}

void MpiJob::align() const {
    if (rounds_) return rounds_->end_round();
    MPI_Barrier(MPI_COMM_WORLD);
}

double MpiJob::max(double value) const {
    return max(std::vector{value}).front();
}

std::vector<double> MpiJob::max(std::vector<double> values) const {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), mpi_count(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    return values;
}

std::uint64_t MpiJob::sum(std::uint64_t value) const {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return value;
}

double MpiJob::add(double value) const {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return value;
}

std::size_t MpiJob::of_first(std::size_t value) const {
    std::uint64_t shared = value;
    MPI_Bcast(&shared, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    return shared;
}

std::vector<std::string> MpiJob::gather(const std::string& text) const {
    const int length = mpi_count(text.size());
    std::vector<int> lengths(static_cast<std::size_t>(size_));
    MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    std::vector<int> starts(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
    std::string all(first() ? static_cast<std::size_t>(starts.back() + lengths.back()) : 0, ' ');
    MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR,
                0, MPI_COMM_WORLD);
    std::vector<std::string> texts;
    if (!first()) return texts;
    for (std::size_t i = 0; i < lengths.size(); ++i)
        texts.push_back(
            all.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(lengths[i])));
    return texts;
}

void MpiJob::all_or_none(const std::function<void()>& step) const {
    std::string problem;
    int first_failed = size_;
    try {
        step();
    } catch (const std::exception& error) {
        problem = error.what();
        first_failed = rank_;
    }
    MPI_Allreduce(MPI_IN_PLACE, &first_failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first_failed == size_) return;
    int length = mpi_count(problem.size());
    MPI_Bcast(&length, 1, MPI_INT, first_failed, MPI_COMM_WORLD);
    problem.resize(static_cast<std::size_t>(length));
    MPI_Bcast(problem.data(), length, MPI_CHAR, first_failed, MPI_COMM_WORLD);
    throw Refusal(problem);
}

double MpiJob::flag_round_trip_us() const {
    double round_trip_us = 0;
    MPI_Comm machine = MPI_COMM_NULL, pair = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine);
    MPI_Comm_split(machine, rank_ < 2 ? 0 : MPI_UNDEFINED, rank_, &pair);
    int here = 0;
    if (pair != MPI_COMM_NULL) MPI_Comm_size(pair, &here);
    if (here == 2 && std::cmp_less_equal(size_, std::thread::hardware_concurrency())) {
        std::uint32_t* word = nullptr;
        MPI_Win window = MPI_WIN_NULL;
        MPI_Win_allocate_shared(rank_ == 0 ? sizeof *word : 0, sizeof *word, MPI_INFO_NULL, pair,
                                &word, &window);
        MPI_Aint bytes = 0;
        int unit = 0;
        MPI_Win_shared_query(window, 0, &bytes, &unit, &word);
        round_trip_us = round_trip(std::atomic_ref(*word), static_cast<std::uint32_t>(rank_),
                                   [&] { MPI_Barrier(pair); });
        MPI_Win_free(&window);
    }
    if (pair != MPI_COMM_NULL) MPI_Comm_free(&pair);
    MPI_Comm_free(&machine);
    MPI_Bcast(&round_trip_us, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return round_trip_us;
}

void MpiJob::abort() const {
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    std::abort();
}

std::string MpiJob::library() {
    std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    text.resize(static_cast<std::size_t>(length));
    return text.substr(0, text.find_first_of(",\n"));
}

int mpi_count(std::size_t count) {
    if (count > std::numeric_limits<int>::max())
        throw std::invalid_argument(
            "MPI counts with int: more than 2147483647 elements do not fit");
    return static_cast<int>(count);
}

}  // namespace guozhuang::perf
