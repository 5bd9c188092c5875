#include "baselines/host_window.hpp"

#include <new>
#include <thread>
#include <utility>

#include "baselines/baseline.hpp"
#include "baselines/mpi_types.hpp"

namespace guozhuang::perf {
namespace {

constexpr std::size_t line_bytes = 64;

#ifdef __x86_64__
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void add(float* __restrict to, const float* __restrict from, std::size_t count) {
    constexpr std::size_t run = 16;
    std::size_t i = 0;
    for (; i + run <= count; i += run)
        for (std::size_t j = 0; j < run; ++j) to[i + j] += from[i + j];
    for (; i < count; ++i) to[i] += from[i];
}

}  // namespace

HostWindow::HostWindow(const MpiJob& job, std::size_t bytes) {
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, job.rank(), MPI_INFO_NULL,
                                  &host));
    int here = 0;
    MPI_Comm_size(host, &here);
    const auto padded = (bytes + line_bytes - 1) / line_bytes * line_bytes;
    if (here == job.size()) {
        void* own = nullptr;
        check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(padded), 1, MPI_INFO_NULL, host,
                                          &own, &window_));
        for (int rank = 0; rank < here; ++rank) {
            MPI_Aint size = 0;
            int unit = 0;
            std::byte* memory = nullptr;
            check_mpi(MPI_Win_shared_query(window_, rank, &size, &unit, &memory));
            parts_.emplace_back(memory, bytes);
        }
    }
    MPI_Comm_free(&host);
    if (here != job.size()) throw Unavailable("the baseline needs all ranks on one host");
}

HostWindow::~HostWindow() {
    MPI_Win_free(&window_);
}

HostRounds::HostRounds(const MpiJob& job) : window_(job, line_bytes) {
    if (std::cmp_greater(job.size(), std::thread::hardware_concurrency())) most_looks_ = 0;
    own_ = ::new (window_.part(job.rank()).data()) Flag(0);
    for (int rank = 0; rank < job.size(); ++rank)
        flags_.push_back(reinterpret_cast<Flag*>(window_.part(rank).data()));
    job.align();
}

void HostRounds::await(std::uint64_t round) const {
    for (const auto* flag : flags_)
        for (int looks = 0; flag->load(std::memory_order_acquire) < round; ++looks)
            if (looks > most_looks_) std::this_thread::yield();
}

void add_floats(std::span<float> to, std::span<const float> from) {
    add(to.data(), from.data(), to.size());
}

}  // namespace guozhuang::perf
