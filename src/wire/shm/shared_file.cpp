#include "wire/shm/shared_file.hpp"

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

namespace guozhuang::wire {
namespace {

constexpr std::string_view file_name = "guozhuang-host-memory";
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// The size of the largest page that Linux uses; only the header's first word is used.
constexpr std::size_t header_bytes = std::size_t{64} << 10;

// The size of huge pages where normal ones have 4 KiB.
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
// MADV_COLLAPSE of Linux 6.1, which some headers lack.
constexpr int make_huge = 25;

/// The distance to the next huge page.
std::size_t before_huge_page(std::uintptr_t address) {
    return (huge_page_bytes - address % huge_page_bytes) % huge_page_bytes;
}

std::byte* next_huge_page(void* address) {
    return static_cast<std::byte*>(address) +
           before_huge_page(reinterpret_cast<std::uintptr_t>(address));
}

/// An address with room for this much, at which the beginning of a file can begin a huge page. A
/// hint: another thread may take it first.
void* address_for(std::size_t bytes) {
    if (bytes < huge_page_bytes) return nullptr;
    void* const room = mmap(nullptr, bytes + huge_page_bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return nullptr;
    munmap(room, bytes + huge_page_bytes);
    return next_huge_page(room);
}

std::uint64_t random_nonce() {
    std::uint64_t nonce = 0;
    while (nonce == 0) {
        if (getrandom(&nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce) &&
            errno != EINTR)
            throw_unavailable("getrandom", errno);
    }
    return nonce;
}

void reserve_file(int file, std::size_t offset, std::size_t bytes) {
    if (bytes == 0) return;
    int error = EINTR;
    while (error == EINTR)
        error = posix_fallocate(file, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (error != 0) throw_unavailable("posix_fallocate", error);
}

/// Opens only files that are ours by name: opening an unknown file of another process may have side
/// effects.
int open_offered(const SharedFile::Offer& offer) {
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.file);
    char target[256];
    const ssize_t length = readlink(path.c_str(), target, sizeof target);
    if (length < 0) throw_unavailable(path.c_str(), errno);
    if (!std::string_view(target, static_cast<std::size_t>(length))
             .starts_with(fmt::format("/memfd:{}", file_name))) {
        throw Error(
            ErrorCode::unavailable,
            fmt::format("{} is not the host's shared memory (ranks in different containers?)",
                        path));
    }
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) throw_unavailable(path.c_str(), errno);
    return file;
}

}  // namespace

void throw_unavailable(const char* operation, int error) {
    throw Error(ErrorCode::unavailable, fmt::format("{}: {}", operation, std::strerror(error)));
}

SharedFile::SharedFile(int file, std::size_t bytes) : file_(file), bytes_(header_bytes + bytes) {}

SharedFile::~SharedFile() {
    close_file();
    if (memory_.data() != nullptr) munmap(nonce(), bytes_);
}

void SharedFile::swap(SharedFile& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(bytes_, other.bytes_);
    std::swap(inode_, other.inode_);
    std::swap(memory_, other.memory_);
}

std::uint64_t* SharedFile::nonce() const noexcept {
    return std::launder(reinterpret_cast<std::uint64_t*>(memory_.data() - header_bytes));
}

void SharedFile::close_file() noexcept {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
}

void SharedFile::map() {
    struct stat facts {};
    if (fstat(file_, &facts) != 0) throw_unavailable("fstat", errno);
    inode_ = facts.st_ino;
    void* memory = mmap(address_for(bytes_), bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) throw_unavailable("mmap", errno);
    memory_ = std::span(static_cast<std::byte*>(memory), bytes_).subspan(header_bytes);
}

SharedFile SharedFile::create(std::size_t bytes) {
    SharedFile file(memfd_create(std::string(file_name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING),
                    bytes);
    if (file.file_ < 0) throw_unavailable("memfd_create", errno);
    if (ftruncate(file.file_, static_cast<off_t>(file.bytes_)) != 0)
        throw_unavailable("ftruncate", errno);
    reserve_file(file.file_, 0, sizeof(std::uint64_t));
    if (fcntl(file.file_, F_ADD_SEALS, seals) != 0) throw_unavailable("F_ADD_SEALS", errno);
    file.map();
    ::new (file.nonce()) std::uint64_t(random_nonce());
    return file;
}

SharedFile SharedFile::attach(const Offer& offer, std::size_t bytes) {
    if (offer.process == 0) throw Error(ErrorCode::unavailable, "there is none to attach to");
    SharedFile file(open_offered(offer), bytes);
    struct stat facts {};
    if (fstat(file.file_, &facts) != 0) throw_unavailable("fstat", errno);
    // A system may add seals of its own (against execution).
    const bool sealed = (fcntl(file.file_, F_GET_SEALS) & seals) == seals;
    const bool fits =
        facts.st_uid == geteuid() && std::cmp_equal(facts.st_size, file.bytes_) && sealed;
    if (!fits)
        throw Error(ErrorCode::unavailable,
                    "the shared memory found is not this job's: another owner, size or seal");
    file.map();
    if (*file.nonce() != offer.nonce)
        throw Error(ErrorCode::unavailable, "the shared memory found is another job's");
    return file;
}

void SharedFile::reserve(std::size_t offset, std::size_t bytes) {
    reserve_file(file_, header_bytes + offset, bytes);
}

void SharedFile::release(std::size_t offset, std::size_t bytes) noexcept {
    static_cast<void>(fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(header_bytes + offset),
                                static_cast<off_t>(bytes)));
}

void SharedFile::use_huge_pages() noexcept {
    if (!memory_.empty())
        use_huge_pages({memory_.data() - header_bytes, memory_.size() + header_bytes});
}

void SharedFile::use_huge_pages(std::span<std::byte> pages) noexcept {
    auto* const begin = next_huge_page(pages.data());
    const auto* const end = pages.data() + pages.size();
    if (begin + huge_page_bytes > end) return;
    static_cast<void>(
        madvise(begin, static_cast<std::size_t>(end - begin) / huge_page_bytes * huge_page_bytes,
                make_huge));
}

std::size_t SharedFile::matching_offset(std::size_t offset,
                                        std::span<const std::byte> pages) noexcept {
    if (pages.size() < huge_page_bytes) return offset;
    const auto address = reinterpret_cast<std::uintptr_t>(pages.data());
    return offset + before_huge_page(header_bytes + offset - address);
}

int SharedFile::map_over(std::span<std::byte> pages, std::size_t offset,
                         bool apart) const noexcept {
    const int kind = apart ? MAP_PRIVATE : MAP_SHARED | MAP_POPULATE;
    const void* const there =
        mmap(pages.data(), pages.size(), PROT_READ | PROT_WRITE, kind | MAP_FIXED, file_,
             static_cast<off_t>(header_bytes + offset));
    return there == MAP_FAILED ? errno : 0;
}

SharedFile::Offer SharedFile::offer() const noexcept {
    return {getpid(), file_, *nonce()};
}

}  // namespace guozhuang::wire
