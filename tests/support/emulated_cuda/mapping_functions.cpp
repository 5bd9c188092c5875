// Memory that a program puts together: addresses, memory of a device, and which of it is where.

#include <map>
#include <mutex>
#include <utility>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/memory.hpp"
#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;

bool is_multiple(std::size_t bytes) {
    return bytes > 0 && bytes % granularity == 0;
}

/// Addresses that begin at a multiple of the granularity, and all that was taken for them.
struct Reservation {
    std::span<std::byte> addresses, taken;

    explicit Reservation(std::size_t bytes) : taken(take_addresses(bytes + granularity)) {
        const auto above = reinterpret_cast<CUdeviceptr>(taken.data()) % granularity;
        addresses = taken.subspan(granularity - above, bytes);
    }
};

/// Physical memory and reserved addresses of this process.
struct State {
    std::mutex mutex;
    std::map<CUmemGenericAllocationHandle, std::shared_ptr<const PhysicalMemory>> memory;
    CUmemGenericAllocationHandle last = 0;
    std::map<CUdeviceptr, Reservation> reservations;

    std::shared_ptr<const PhysicalMemory> memory_of(CUmemGenericAllocationHandle handle) {
        const auto found = memory.find(handle);
        if (found == memory.end())
            break_rule("memory without an address is used after its release");
        return found->second;
    }
    /// Throws Refusal unless all of it is reserved.
    std::span<std::byte> reserved(CUdeviceptr address, std::size_t bytes) {
        const auto above = reservations.upper_bound(address);
        require(above != reservations.begin(), cudaErrorInvalidValue);
        const auto& [start, reservation] = *std::prev(above);
        const auto all = reservation.addresses;
        require(bytes <= all.size() && address - start <= all.size() - bytes,
                cudaErrorInvalidValue);
        return all.subspan(address - start, bytes);
    }
};

State& state() {
    static auto& all = *new State;
    return all;
}

/// The mapping that the first address of the range lies in; null if there is none.
std::shared_ptr<Memory> mapping_at(std::span<const std::byte> range) {
    auto memory = find_memory(range.data());
    return memory && memory->kind() == MemoryKind::mapped ? memory : nullptr;
}

bool is_unmapped(std::span<const std::byte> range) {
    for (std::size_t at = 0; at < range.size(); at += granularity)
        if (mapping_at(range.subspan(at))) return false;
    return true;
}

}  // namespace
}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
    return driver_call(__func__, usual, [&] {
        *bytes = granularity;
        return cudaSuccess;
    });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* wanted, unsigned long long flags) {
    return driver_call(__func__, usual, [&] {
        require(is_multiple(bytes) && flags == 0 && wanted->type == CU_MEM_ALLOCATION_TYPE_PINNED,
                cudaErrorInvalidValue);
        auto* device = device_or_null(wanted->location.id);
        require(wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE && device,
                cudaErrorInvalidDevice);
        auto made = std::make_shared<const PhysicalMemory>(*device, bytes);
        const std::lock_guard lock(state().mutex);
        *handle = ++state().last;
        state().memory[*handle] = std::move(made);
        return cudaSuccess;
    });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return driver_call(__func__, usual, [&] {
        const std::lock_guard lock(state().mutex);
        state().memory_of(handle);
        state().memory.erase(handle);
        return cudaSuccess;
    });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long flags) {
    return driver_call(__func__, usual, [&] {
        require(is_multiple(bytes) && alignment <= granularity && flags == 0,
                cudaErrorInvalidValue);
        const Reservation made(bytes);
        *address = reinterpret_cast<CUdeviceptr>(made.addresses.data());
        const std::lock_guard lock(state().mutex);
        state().reservations.emplace(*address, made);
        return cudaSuccess;
    });
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    return driver_call(__func__, usual, [&] {
        const std::lock_guard lock(state().mutex);
        const auto found = state().reservations.find(address);
        require(found != state().reservations.end(), cudaErrorInvalidValue);
        const auto [addresses, taken] = found->second;
        require(addresses.size() == bytes && is_unmapped(addresses), cudaErrorInvalidValue);
        give_back_addresses(taken);
        state().reservations.erase(found);
        return cudaSuccess;
    });
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return driver_call(__func__, usual, [&] {
        const std::lock_guard lock(state().mutex);
        const auto physical = state().memory_of(handle);
        require(is_multiple(bytes) && address % granularity == 0 && offset == 0 && flags == 0 &&
                    bytes <= physical->bytes(),
                cudaErrorInvalidValue);
        const auto range = state().reserved(address, bytes);
        require(is_unmapped(range), cudaErrorInvalidValue);
        add_memory(Memory::mapped(physical, range));
        return cudaSuccess;
    });
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* wanted,
                        std::size_t count) {
    return driver_call(__func__, usual, [&] {
        require(count == 1 && wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
                    wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
                cudaErrorNotSupported);
        const std::lock_guard lock(state().mutex);
        auto rest = state().reserved(address, bytes);
        while (!rest.empty()) {
            const auto memory = mapping_at(rest);
            require(memory && memory->bytes().data() == rest.data() &&
                        memory->bytes().size() <= rest.size(),
                    cudaErrorInvalidValue);
            require(memory->device().index() == wanted->location.id, cudaErrorNotSupported);
            memory->let_in();
            rest = rest.subspan(memory->bytes().size());
        }
        return cudaSuccess;
    });
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    return driver_call(__func__, usual, [&] {
        const std::lock_guard lock(state().mutex);
        const auto range = state().reserved(address, bytes);
        const auto memory = mapping_at(range);
        require(memory && memory->bytes().data() == range.data() && memory->bytes().size() == bytes,
                cudaErrorInvalidValue);
        for (auto* device : devices()) device->wait_until_idle();
        remove_memory(range.data());
        return cudaSuccess;
    });
}
