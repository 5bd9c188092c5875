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
#include "support/emulated_cuda/protection.hpp"
#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

constexpr std::size_t page_bytes = 4096, alignment = 256;
/// Memory has undefined contents at first: NaNs in every floating dtype, up to so many bytes.
constexpr int undefined = 0xff;
constexpr std::size_t most_undefined = std::size_t{64} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/// Hands out ranges of the device's addresses, one after the other, so that freed ones stay
/// unmapped for as long as possible.
class Addresses {
public:
    std::byte* take(std::size_t bytes) {
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
                return all.data() + at;
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

void Memory::map_file(int physical, std::size_t bytes) {
    watch_faults();
    const auto pages = round_up(bytes, page_bytes);
    auto* start = addresses().take(pages + 2 * page_bytes);
    mapping_ = {start, pages + 2 * page_bytes};
    void* mapped =
        mmap(start + page_bytes, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0);
    require(mapped != MAP_FAILED, cudaErrorMemoryAllocation);
    if (!is_imported()) std::memset(mapped, undefined, std::min(pages, most_undefined));
    protect({static_cast<std::byte*>(mapped), pages}, physical);
    bytes_ = {start + page_bytes + pages - round_up(bytes, alignment), bytes};
}

std::shared_ptr<Memory> Memory::on_device(Device& device, std::size_t bytes, MemoryKind kind) {
    require(device.take(bytes), cudaErrorMemoryAllocation);
    std::shared_ptr<Memory> memory(new Memory(device, kind));
    memory->bytes_ = {static_cast<std::byte*>(nullptr), bytes};  // accounted for from here on
    memory->generation_ = new_generation();
    const auto name = "emulated_cuda_" + std::to_string(memory->generation_);
    memory->file_ = memfd_create(name.c_str(), MFD_CLOEXEC);
    const auto pages = static_cast<off_t>(round_up(bytes, page_bytes));
    require(memory->file_ >= 0 && ftruncate(memory->file_, pages) == 0, cudaErrorMemoryAllocation);
    memory->map_file(device.physical(), bytes);
    return memory;
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
    memory->file_ = file;
    memory->map_file(physical, bytes);
    return memory;
}

Memory::~Memory() {
    if (kind_ == MemoryKind::device || kind_ == MemoryKind::pool) device_.give_back(bytes_.size());
    if (file_ >= 0) ::close(file_);
    if (mapping_.empty()) return;
    if (!is_of_device()) {
        munmap(mapping_.data(), mapping_.size());
        return;
    }
    static_cast<void>(mmap(mapping_.data(), mapping_.size(), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
    addresses().give_back(mapping_);
}

bool Memory::contains(std::span<const std::byte> range) const noexcept {
    return range.data() >= bytes_.data() &&
           range.data() + range.size() <= bytes_.data() + bytes_.size();
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

}  // namespace guozhuang::emulated_cuda
