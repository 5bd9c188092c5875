#include "wire/doorbells.hpp"

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

constexpr std::string_view file_name = "guozhuang-doorbells";
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// In front of the bells.
struct alignas(64) Header {
    std::uint64_t nonce = 0;
    std::uint64_t ranks = 0;
};

std::size_t bytes_for(int ranks) {
    return sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(base::Doorbell);
}

[[noreturn]] void fail(const char* operation, int error) {
    throw Error(ErrorCode::unavailable, fmt::format("{}: {}", operation, std::strerror(error)));
}

std::uint64_t random_nonce() {
    std::uint64_t nonce = 0;
    while (nonce == 0) {
        if (getrandom(&nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce)) fail("getrandom", errno);
    }
    return nonce;
}

/// Opens only what is a file of ours by name: opening an unknown file of another process may have effects.
int open_offered(const Doorbells::Offer& offer) {
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.file);
    char target[256];
    const ssize_t length = readlink(path.c_str(), target, sizeof target);
    if (length < 0) fail(path.c_str(), errno);
    if (!std::string_view(target, static_cast<std::size_t>(length)).starts_with(fmt::format("/memfd:{}", file_name))) {
        throw Error(ErrorCode::unavailable, fmt::format("{} is not the host's doorbells (ranks in different containers?)", path));
    }
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) fail(path.c_str(), errno);
    return file;
}

}  // namespace

Doorbells::Doorbells(int file, int ranks) : file_(file), ranks_(ranks) {}

Doorbells::Doorbells(Doorbells&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), file_(std::exchange(other.file_, -1)), ranks_(std::exchange(other.ranks_, 0)) {}

Doorbells& Doorbells::operator=(Doorbells&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(file_, other.file_);
    std::swap(ranks_, other.ranks_);
    return *this;
}

Doorbells::~Doorbells() {
    close_file();
    if (memory_ != nullptr) munmap(memory_, bytes_for(ranks_));
}

void Doorbells::close_file() noexcept {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
}

void Doorbells::map() {
    void* memory = mmap(nullptr, bytes_for(ranks_), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) fail("mmap", errno);
    memory_ = memory;
}

Doorbells Doorbells::create(int ranks) {
    Doorbells bells(memfd_create(std::string(file_name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING), ranks);
    if (bells.file_ < 0) fail("memfd_create", errno);
    // Real memory now rather than a SIGBUS at the first touch.
    if (const int error = posix_fallocate(bells.file_, 0, static_cast<off_t>(bytes_for(ranks))); error != 0) fail("posix_fallocate", error);
    if (fcntl(bells.file_, F_ADD_SEALS, seals) != 0) fail("F_ADD_SEALS", errno);
    bells.map();
    ::new (bells.memory_) Header{random_nonce(), static_cast<std::uint64_t>(ranks)};
    for (int rank = 0; rank < ranks; ++rank) ::new (&bells[rank]) base::Doorbell;
    return bells;
}

Doorbells Doorbells::attach(const Offer& offer, int ranks) {
    if (offer.process == 0) throw Error(ErrorCode::unavailable, "the host's first rank has none");
    Doorbells bells(open_offered(offer), ranks);
    struct stat facts {};
    if (fstat(bells.file_, &facts) != 0) fail("fstat", errno);
    const bool fits =
        facts.st_uid == geteuid() && std::cmp_equal(facts.st_size, bytes_for(ranks)) && fcntl(bells.file_, F_GET_SEALS) == seals;
    if (!fits) throw Error(ErrorCode::unavailable, "the doorbells found are not this job's: another owner, size or seal");
    bells.map();
    const auto* header = std::launder(static_cast<const Header*>(bells.memory_));
    if (header->nonce != offer.nonce || std::cmp_not_equal(header->ranks, ranks)) {
        throw Error(ErrorCode::unavailable, "the doorbells found are another job's");
    }
    bells.close_file();
    return bells;
}

Doorbells::Offer Doorbells::offer() const noexcept {
    return {getpid(), file_, static_cast<const Header*>(memory_)->nonce};
}

base::Doorbell& Doorbells::operator[](int rank) noexcept {
    auto* first = reinterpret_cast<base::Doorbell*>(static_cast<std::byte*>(memory_) + sizeof(Header));
    return first[rank];
}

}  // namespace guozhuang::wire
