#include "beside/beside.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <mpi.h>
#include <sched.h>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace guozhuang::perf {
namespace {

/// The ranks of this host, while it lives.
class HostRanks {
public:
    HostRanks() {
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &ranks);
    }
    ~HostRanks() { MPI_Comm_free(&ranks); }
    HostRanks(const HostRanks&) = delete;
    HostRanks& operator=(const HostRanks&) = delete;

    int rank() const {
        int rank = 0;
        MPI_Comm_rank(ranks, &rank);
        return rank;
    }
    int size() const {
        int size = 0;
        MPI_Comm_size(ranks, &size);
        return size;
    }

    MPI_Comm ranks = MPI_COMM_NULL;
};

int checked(int result, const char* call) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), call);
    return result;
}

/// mpirun may have bound the process to one core; the kernel takes those of the mask that exist.
void use_all_cores() {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
    ::sched_setaffinity(0, sizeof all, &all);
}

}  // namespace

BusyThreads::BusyThreads(int threads) {
    const HostRanks host;
    for (int i = 0; host.rank() == 0 && i < threads; ++i)
        threads_.emplace_back([](const std::stop_token& stop) {
            use_all_cores();
            while (!stop.stop_requested()) continue;
        });
}

PipeRing::PipeRing() {
    const HostRanks host;
    rank_ = host.rank();
    size_ = host.size();
    std::array<char, 1024> directory{};
    if (rank_ == 0) {
        const auto pattern = (std::filesystem::temp_directory_path() / "gz-perf-XXXXXX").string();
        pattern.copy(directory.data(), directory.size() - 1);
        checked(::mkdtemp(directory.data()) == nullptr ? -1 : 0, "mkdtemp");
    }
    MPI_Bcast(directory.data(), static_cast<int>(directory.size()), MPI_CHAR, 0, host.ranks);
    const auto pipe_to = [&](int rank) {
        return std::string(directory.data()) + "/" + std::to_string(rank);
    };
    checked(::mkfifo(pipe_to(rank_).c_str(), S_IRUSR | S_IWUSR), "mkfifo");
    in_ = checked(::open(pipe_to(rank_).c_str(), O_RDWR | O_CLOEXEC), "open");  // never blocks
    MPI_Barrier(host.ranks);
    out_ = checked(::open(pipe_to((rank_ + 1) % size_).c_str(), O_WRONLY | O_CLOEXEC), "open");
    MPI_Barrier(host.ranks);
    ::unlink(pipe_to(rank_).c_str());
    MPI_Barrier(host.ranks);
    if (rank_ == 0) ::rmdir(directory.data());
}

PipeRing::~PipeRing() {
    ::close(in_);
    ::close(out_);
}

void PipeRing::pass_token() {
    if (rank_ == 0) send();
    receive();
    if (rank_ != 0) send();
}

void PipeRing::send() {
    constexpr char token = 1;
    checked(static_cast<int>(::write(out_, &token, sizeof token)), "write");
}

void PipeRing::receive() {
    char token = 0;
    while (::read(in_, &token, sizeof token) < 0)
        if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "read");
}

}  // namespace guozhuang::perf
