// Device memory of one process in another. A handle says which of the exporter's files to open,
// through /proc, and the file's name which memory that is, so a handle of freed memory is known.

#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/configuration.hpp"
#include "support/emulated_cuda/memory.hpp"
#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

struct Handle {
    char magic[8];
    int process;
    int file;
    int physical_device;
    std::uint64_t generation;
    std::uint64_t bytes;

    auto operator<=>(const Handle&) const = default;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

constexpr char magic[8] = "emulate";

/// Memory of another process that this one has opened. A handle that is opened again gives the same
/// address.
struct Opened {
    std::byte* address;
    int times;
};

std::mutex mutex;
std::map<Handle, Opened>& opened() {
    static auto& all = *new std::map<Handle, Opened>;
    return all;
}

int open_file(const Handle& handle) {
    const auto path =
        "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    std::error_code failed;
    const auto target = std::filesystem::read_symlink(path, failed).string();
    const auto name = "/memfd:emulated_cuda_" + std::to_string(handle.generation) + " ";
    require(!failed && target.starts_with(name), cudaErrorInvalidValue);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    require(file >= 0, cudaErrorMapBufferObjectFailed);
    return file;
}

std::byte* import(const Handle& handle) {
    auto* own = device_of_physical(handle.physical_device);
    auto& device = own ? *own : current_device();
    const auto here = current_device().physical();
    require(handle.physical_device == here || are_peers(handle.physical_device, here),
            cudaErrorPeerAccessUnsupported);
    current_device().enable_peer_of(handle.physical_device);
    return add_memory(Memory::imported(device, handle.physical_device, open_file(handle),
                                       static_cast<std::size_t>(handle.bytes)));
}

}  // namespace
}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
    return call(__func__, usual, [&] {
        const auto memory = find_memory(address);
        require(memory != nullptr, cudaErrorInvalidValue);
        if (memory->kind() > MemoryKind::device && memory->kind() <= MemoryKind::managed)
            break_rule(
                "memory of a pool, mapped or managed memory cannot be shared with processes");
        require(memory->kind() == MemoryKind::device, cudaErrorInvalidValue);
        Handle shared{{},
                      ::getpid(),
                      memory->physical()->file(),
                      memory->device().physical(),
                      memory->physical()->generation(),
                      memory->bytes().size()};
        std::memcpy(shared.magic, magic, sizeof magic);
        std::memset(handle, 0, sizeof *handle);
        std::memcpy(handle, &shared, sizeof shared);
        return cudaSuccess;
    });
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
    return call(__func__, usual, [&] {
        Handle shared{};
        std::memcpy(&shared, &handle, sizeof shared);
        require(flags == cudaIpcMemLazyEnablePeerAccess &&
                    std::memcmp(shared.magic, magic, sizeof magic) == 0,
                cudaErrorInvalidValue);
        require(shared.process != ::getpid(), cudaErrorDeviceUninitialized);
        current_device().wait_before_allocating();
        const std::lock_guard lock(mutex);
        const auto known = opened().find(shared);
        auto& entry =
            known != opened().end() ? known->second : opened()[shared] = {import(shared), 0};
        ++entry.times;
        *address = entry.address;
        return cudaSuccess;
    });
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
    return call(__func__, usual, [&] {
        const auto memory = find_memory(address);
        require(memory && memory->is_imported(), cudaErrorInvalidValue);
        const std::lock_guard lock(mutex);
        for (auto at = opened().begin(); at != opened().end(); ++at) {
            if (at->second.address != address) continue;
            if (--at->second.times > 0) return cudaSuccess;
            for (auto* device : devices()) device->wait_until_idle();
            opened().erase(at);
            remove_memory(address);
            return cudaSuccess;
        }
        return cudaErrorInvalidValue;
    });
}
