#include "wire/host_memory.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <new>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/process.hpp"

namespace guozhuang::wire {
namespace {

constexpr std::string_view file_name = "guozhuang-host-memory";
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t page_bytes = std::size_t{64} << 10;  // the largest that Linux uses, so whole pages everywhere

/// In front of the bells.
struct alignas(64) Header {
    std::uint64_t nonce = 0;
    std::uint64_t ranks = 0;
};

// Header, bells, activities, progress words; then, from a page of its own, the stages.
std::size_t activities_offset(int ranks) {
    return sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(base::Doorbell);
}
std::size_t progress_offset(int ranks) {
    return activities_offset(ranks) + static_cast<std::size_t>(ranks) * sizeof(base::Activity);
}
std::size_t stages_offset(int ranks) {
    const auto end = progress_offset(ranks) + static_cast<std::size_t>(ranks) * sizeof(Staging::Progress);
    return (end + page_bytes - 1) / page_bytes * page_bytes;
}
std::size_t bytes_for(const HostMemory::Size& size) {
    return stages_offset(size.ranks) + static_cast<std::size_t>(size.ranks) * size.stage_bytes;
}

[[noreturn]] void fail(const char* operation, int error) {
    throw Error(ErrorCode::unavailable, fmt::format("{}: {}", operation, std::strerror(error)));
}

std::uint64_t random_nonce() {
    std::uint64_t nonce = 0;
    while (nonce == 0) {
        if (getrandom(&nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce) && errno != EINTR) fail("getrandom", errno);
    }
    return nonce;
}

void reserve(int file, std::size_t offset, std::size_t bytes) {
    if (bytes == 0) return;
    const base::FileSizeErrors errors;
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (error != 0) fail("posix_fallocate", error);
}

/// Opens only what is a file of ours by name: opening an unknown file of another process may have effects.
int open_offered(const HostMemory::Offer& offer) {
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.file);
    char target[256];
    const ssize_t length = readlink(path.c_str(), target, sizeof target);
    if (length < 0) fail(path.c_str(), errno);
    if (!std::string_view(target, static_cast<std::size_t>(length)).starts_with(fmt::format("/memfd:{}", file_name))) {
        throw Error(ErrorCode::unavailable, fmt::format("{} is not the host's shared memory (ranks in different containers?)", path));
    }
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) fail(path.c_str(), errno);
    return file;
}

}  // namespace

HostMemory::HostMemory(int file, const Size& size) : file_(file), size_(size) {}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(file_, other.file_);
    std::swap(size_, other.size_);
    return *this;
}

HostMemory::~HostMemory() {
    close_file();
    if (memory_ != nullptr) munmap(memory_, bytes_for(size_));
}

void HostMemory::close_file() noexcept {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
}

void HostMemory::map() {
    void* memory = mmap(nullptr, bytes_for(size_), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) fail("mmap", errno);
    memory_ = memory;
}

template <class T>
T* HostMemory::at(std::size_t offset) noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
}

HostMemory HostMemory::create(const Size& size) {
    HostMemory memory(memfd_create(std::string(file_name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING), size);
    if (memory.file_ < 0) fail("memfd_create", errno);
    const base::FileSizeErrors errors;
    if (ftruncate(memory.file_, static_cast<off_t>(bytes_for(size))) != 0) fail("ftruncate", errno);
    reserve(memory.file_, 0, stages_offset(size.ranks));
    if (fcntl(memory.file_, F_ADD_SEALS, seals) != 0) fail("F_ADD_SEALS", errno);
    memory.map();
    ::new (memory.memory_) Header{random_nonce(), static_cast<std::uint64_t>(size.ranks)};
    for (int rank = 0; rank < size.ranks; ++rank) {
        ::new (&memory.bell(rank)) base::Doorbell;
        ::new (&memory.activity(rank)) base::Activity;
        ::new (memory.at<Staging::Progress>(progress_offset(size.ranks)) + rank) Staging::Progress;
    }
    return memory;
}

HostMemory HostMemory::attach(const Offer& offer, const Size& size) {
    if (offer.process == 0) throw Error(ErrorCode::unavailable, "the host's first rank has none");
    HostMemory memory(open_offered(offer), size);
    struct stat facts {};
    if (fstat(memory.file_, &facts) != 0) fail("fstat", errno);
    // A system may add seals of its own (against execution).
    const bool sealed = (fcntl(memory.file_, F_GET_SEALS) & seals) == seals;
    const bool fits = facts.st_uid == geteuid() && std::cmp_equal(facts.st_size, bytes_for(size)) && sealed;
    if (!fits) throw Error(ErrorCode::unavailable, "the shared memory found is not this job's: another owner, size or seal");
    memory.map();
    const auto* header = std::launder(memory.at<const Header>(0));
    if (header->nonce != offer.nonce || std::cmp_not_equal(header->ranks, size.ranks)) {
        throw Error(ErrorCode::unavailable, "the shared memory found is another job's");
    }
    return memory;
}

void HostMemory::reserve_stage(int rank) {
    const auto offset = stages_offset(size_.ranks) + static_cast<std::size_t>(rank) * size_.stage_bytes;
    reserve(file_, offset, size_.stage_bytes);
}

HostMemory::Offer HostMemory::offer() const noexcept {
    return {getpid(), file_, static_cast<const Header*>(memory_)->nonce};
}

base::Doorbell& HostMemory::bell(int rank) noexcept {
    return at<base::Doorbell>(sizeof(Header))[rank];
}

base::Activity& HostMemory::activity(int rank) noexcept {
    return at<base::Activity>(activities_offset(size_.ranks))[rank];
}

Staging HostMemory::staging() noexcept {
    const auto ranks = static_cast<std::size_t>(size_.ranks);
    return {.progress = {at<Staging::Progress>(progress_offset(size_.ranks)), ranks},
            .stages = {at<std::byte>(stages_offset(size_.ranks)), ranks * size_.stage_bytes}};
}

}  // namespace guozhuang::wire
