#include "support/emulated_cuda/memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/configuration.hpp"
#include "support/emulated_cuda/protection.hpp"
#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

constexpr std::size_t page_bytes = 4096, alignment = 256;
/// Memory has undefined contents at first: NaNs in every floating dtype, up to so many bytes.
constexpr int undefined = 0xff;
constexpr std::size_t most_undefined = std::size_t{64} << 20;
/// Up to so many bytes, memory of whole pages lies without a gap beside what was allocated before:
/// CUDA's allocations touch, too, and no copy may cross from one into the next.
constexpr std::size_t most_touching = std::size_t{64} << 10;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/// Hands out ranges of the device's addresses, one after the other, so that freed ones stay
/// unmapped for as long as possible.
class Addresses {
public:
    std::span<std::byte> take(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        const auto all = device_addresses();
        for (int round = 0; round < 2; ++round) {
            for (auto taken = taken_.lower_bound(next_);
                 taken != taken_.end() && taken->first < next_ + bytes; ++taken)
                next_ = taken->first + taken->second;
            if (next_ + bytes <= all.size()) {
                const auto at = next_;
                taken_[at] = bytes;
                next_ += bytes;
                return all.subspan(at, bytes);
            }
            next_ = 0;  // taken once already: look for gaps
        }
        throw Refusal{cudaErrorMemoryAllocation};
    }
    void give_back(std::span<std::byte> range) {
        const std::lock_guard lock(mutex_);
        taken_.erase(static_cast<std::size_t>(range.data() - device_addresses().data()));
    }

private:
    std::mutex mutex_;
    std::size_t next_ = 0;
    std::map<std::size_t, std::size_t> taken_;
};

Addresses& addresses() {
    static auto& all = *new Addresses;
    return all;
}

std::uint64_t new_generation() {
    static std::atomic<std::uint64_t> last = 0;
    return ++last;
}

struct Table {
    std::mutex mutex;
    std::map<const std::byte*, std::shared_ptr<Memory>> memory;  ///< by its last byte
};

Table& table() {
    static auto& all = *new Table;
    return all;
}

}  // namespace

PhysicalMemory::PhysicalMemory(Device& device, std::size_t bytes)
    : device_(device), bytes_(bytes), generation_(new_generation()) {
    require(device.take(bytes), cudaErrorMemoryAllocation);
    const auto name = "emulated_cuda_" + std::to_string(generation_);
    file_ = memfd_create(name.c_str(), MFD_CLOEXEC);
    const auto pages = round_up(bytes, page_bytes);
    void* mapped = MAP_FAILED;
    if (file_ >= 0 && ftruncate(file_, static_cast<off_t>(pages)) == 0)
        mapped = mmap(nullptr, pages, PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) {
        release();
        throw Refusal{cudaErrorMemoryAllocation};
    }
    std::memset(mapped, undefined, std::min(pages, most_undefined));
    munmap(mapped, pages);
}

PhysicalMemory::~PhysicalMemory() {
    release();
}

void PhysicalMemory::release() const noexcept {
    if (file_ >= 0) ::close(file_);
    device_.give_back(bytes_);
}

void Memory::map_file(int file, int device, std::size_t bytes, int how) {
    watch_faults();
    const auto pages = round_up(bytes, page_bytes);
    const std::size_t gap = bytes == pages && bytes <= most_touching ? 0 : page_bytes;
    mapping_ = take_addresses(pages + 2 * gap);
    auto* start = mapping_.data() + gap;
    require(mmap(start, pages, PROT_READ | PROT_WRITE, how | MAP_FIXED, file, 0) == start,
            cudaErrorMemoryAllocation);
    protect({start, pages}, device);
    bytes_ = {start + pages - round_up(bytes, alignment), bytes};
}

std::shared_ptr<Memory> Memory::on_device(Device& device, std::size_t bytes, MemoryKind kind) {
    std::shared_ptr<Memory> memory(new Memory(device, kind));
    memory->physical_ = std::make_shared<const PhysicalMemory>(device, bytes);
    memory->map_file(memory->physical_->file(), device.physical(), bytes, MAP_SHARED);
    return memory;
}

std::shared_ptr<Memory> Memory::mapped(std::shared_ptr<const PhysicalMemory> physical,
                                       std::span<std::byte> at) {
    watch_faults();
    std::shared_ptr<Memory> memory(new Memory(physical->device(), MemoryKind::mapped));
    require(mmap(at.data(), at.size(), PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file(), 0) ==
                at.data(),
            cudaErrorMemoryAllocation);
    memory->bytes_ = memory->mapping_ = at;
    memory->physical_ = std::move(physical);
    return memory;
}

void Memory::let_in() const noexcept {
    mprotect(bytes_.data(), bytes_.size(), PROT_READ | PROT_WRITE);
    protect(bytes_, device_.physical());
}

std::shared_ptr<Memory> Memory::on_host(Device& device, std::size_t bytes, MemoryKind kind) {
    std::shared_ptr<Memory> memory(new Memory(device, kind));
    const auto pages = round_up(bytes, page_bytes);
    void* mapped = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(mapped != MAP_FAILED, cudaErrorMemoryAllocation);
    memory->mapping_ = {static_cast<std::byte*>(mapped), pages};
    std::memset(mapped, undefined, std::min(pages, most_undefined));
    memory->bytes_ = memory->mapping_.first(bytes);
    return memory;
}

std::shared_ptr<Memory> Memory::registered(Device& device, std::span<std::byte> bytes) {
    std::shared_ptr<Memory> memory(new Memory(device, MemoryKind::registered));
    memory->bytes_ = bytes;
    return memory;
}

std::shared_ptr<Memory> Memory::imported(Device& device, int physical, int file,
                                         std::size_t bytes) {
    std::shared_ptr<Memory> memory(new Memory(device, MemoryKind::imported));
    memory->imported_file_ = file;
    const bool loses_writes = physical != current_device().physical() &&
                              configuration().peers == Configuration::PeerAccess::reads;
    memory->map_file(file, physical, bytes, loses_writes ? MAP_PRIVATE : MAP_SHARED);
    return memory;
}

Memory::~Memory() {
    if (imported_file_ >= 0) ::close(imported_file_);
    if (mapping_.empty()) return;
    if (!is_of_device()) {
        munmap(mapping_.data(), mapping_.size());
        return;
    }
    static_cast<void>(mmap(mapping_.data(), mapping_.size(), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
    if (kind_ != MemoryKind::mapped) give_back_addresses(mapping_);
}

bool Memory::contains(std::span<const std::byte> range) const noexcept {
    return range.data() >= bytes_.data() &&
           range.data() + range.size() <= bytes_.data() + bytes_.size();
}

bool is_covered(const Memory& first, std::span<const std::byte> range) {
    if (first.contains(range)) return true;
    const auto within = first.bytes().data() + first.bytes().size() - range.data();
    const auto rest = range.subspan(static_cast<std::size_t>(within));
    const auto next = find_memory(rest.data());
    return first.kind() == MemoryKind::mapped && next && next->kind() == MemoryKind::mapped &&
           is_covered(*next, rest);
}

std::byte* add_memory(std::shared_ptr<Memory> memory) {
    const std::lock_guard lock(table().mutex);
    auto& all = table().memory;
    const auto bytes = memory->bytes();
    const auto above = all.lower_bound(bytes.data());
    require(above == all.end() || above->second->bytes().data() >= bytes.data() + bytes.size(),
            cudaErrorHostMemoryAlreadyRegistered);
    all[bytes.data() + bytes.size() - 1] = std::move(memory);
    return bytes.data();
}

std::shared_ptr<Memory> find_memory(const void* address) {
    const std::lock_guard lock(table().mutex);
    const auto* byte = static_cast<const std::byte*>(address);
    const auto at = table().memory.lower_bound(byte);
    if (at == table().memory.end() || at->second->bytes().data() > byte) return nullptr;
    return at->second;
}

std::shared_ptr<Memory> remove_memory(const void* address) {
    auto memory = find_memory(address);
    if (!memory || memory->bytes().data() != address) return nullptr;
    const std::lock_guard lock(table().mutex);
    table().memory.erase(memory->bytes().data() + memory->bytes().size() - 1);
    return memory;
}

std::span<std::byte> take_addresses(std::size_t bytes) {
    return addresses().take(bytes);
}

void give_back_addresses(std::span<std::byte> taken) {
    addresses().give_back(taken);
}

}  // namespace guozhuang::emulated_cuda
