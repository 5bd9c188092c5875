// The driver's functions that the runtime has no name for, which are looked up through it.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/device_facts.hpp"
#include "support/emulated_cuda/devices.hpp"
#include "support/emulated_cuda/memory.hpp"
#include "support/emulated_cuda/rules.hpp"
#include "support/emulated_cuda/submit.hpp"

namespace guozhuang::emulated_cuda {
namespace {

CUcontext context_of(Device* device) {
    return reinterpret_cast<CUcontext>(device);
}

CUcontext context_of(Device* device, OwnContext* own) {
    return own ? reinterpret_cast<CUcontext>(own) : context_of(device);
}

/// Contexts that programs have made.
class OwnContexts {
public:
    OwnContext& add(Device& device) {
        const std::lock_guard lock(mutex_);
        return *contexts_.emplace_back(std::make_unique<OwnContext>(device));
    }
    OwnContext* find(CUcontext context) {
        const std::lock_guard lock(mutex_);
        for (const auto& each : contexts_)
            if (context_of(nullptr, each.get()) == context) return each.get();
        return nullptr;
    }

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<OwnContext>> contexts_;
};

OwnContexts& own_contexts() {
    static auto& instance = *new OwnContexts;
    return instance;
}

const void* pointer_of(CUdeviceptr address) {
    return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// A word that streams can write and wait for. Throws Refusal if CUDA knows no such memory.
std::atomic_ref<std::uint32_t> word_at(CUdeviceptr address) {
    const auto memory = find_memory(pointer_of(address));
    const auto* start = static_cast<const std::byte*>(pointer_of(address));
    require(memory && address % sizeof(std::uint32_t) == 0 &&
                memory->contains({start, sizeof(std::uint32_t)}),
            cudaErrorInvalidValue);
    auto* word = memory->bytes().data() + (start - memory->bytes().data());
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word));
}

/// Another process may write the word, so nothing here can be told: the stream's thread looks.
void wait_for_word(std::atomic_ref<std::uint32_t> word, std::uint32_t value, const Device& device) {
    using namespace std::chrono_literals;
    const auto is_behind = [&] {
        return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - value) < 0;
    };
    auto pause = 20us;
    while (!device.broken() && is_behind()) {
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::microseconds>(2 * pause, 1ms);
    }
}

using Work = std::function<void()>;

/// A write without a barrier, which this version of the function does not have, breaks a rule:
/// streams that are threads cannot show what it leaves unordered.
Work write_of(CUdeviceptr address, std::uint32_t value, unsigned flags) {
    if ((flags & CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) != 0)
        break_rule(
            "a word is written without a memory barrier, so what came before may come after");
    require(flags == CU_STREAM_WRITE_VALUE_DEFAULT, cudaErrorInvalidValue);
    return [word = word_at(address), value] { word.store(value, std::memory_order_release); };
}

Work wait_of(const Device& device, CUdeviceptr address, std::uint32_t value, unsigned flags) {
    const unsigned condition = flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
    require(condition == CU_STREAM_WAIT_VALUE_GEQ, cudaErrorInvalidValue);
    require(condition == flags || device_facts::flushes_remote_writes, cudaErrorNotSupported);
    return [word = word_at(address), value, &device] { wait_for_word(word, value, device); };
}

Work work_of(const Device& device, const CUstreamBatchMemOpParams& each) {
    if (each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
        return write_of(each.writeValue.address, each.writeValue.value, each.writeValue.flags);
    require(each.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32, cudaErrorInvalidValue);
    return wait_of(device, each.waitValue.address, each.waitValue.value, each.waitValue.flags);
}

template <class T>
void answer(void* data, T value) {
    *static_cast<T*>(data) = value;
}

/// The attribute of what CUDA knows at the address.
cudaError_t attribute_of(const Memory& memory, CUpointer_attribute attribute, CUdeviceptr address,
                         void* data) {
    const bool on_device = memory.is_of_device();
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: answer(data, context_of(&memory.device())); break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            answer(data, memory.is_of_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: answer(data, address); break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            answer(data, on_device ? nullptr : pointer_of(address));
            return on_device ? cudaErrorInvalidValue : cudaSuccess;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            answer(data, static_cast<unsigned>(memory.kind() == MemoryKind::managed));
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: answer(data, memory.device().index()); break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            answer(data, static_cast<unsigned>(memory.kind() == MemoryKind::device));
            break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            answer(data, static_cast<unsigned long long>(
                             memory.physical() ? memory.physical()->generation() : 0));
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: answer(data, memory.bytes().data()); break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: answer(data, memory.bytes().size()); break;
        default: return cudaErrorNotSupported;
    }
    return cudaSuccess;
}

struct EntryPoint {
    std::string_view name;
    void* function;
};

template <class Function>
EntryPoint entry(std::string_view name, Function* function) {
    return {name, reinterpret_cast<void*>(function)};
}

/// cuCtxGetDevice as it was before CUDA 13, without a context of the caller's choice.
CUresult current_device(CUdevice* device) {
    return static_cast<CUresult>(cudaGetDevice(device));
}

CUresult tell_uuid(const char* function, CUuuid* uuid, CUdevice index,
                   std::array<unsigned char, 16> (*uuid_of)(const Device&)) {
    return driver_call(function, without_device, [&] {
        const auto* device = device_or_null(index);
        require(device != nullptr, cudaErrorInvalidDevice);
        std::memcpy(uuid, uuid_of(*device).data(), sizeof *uuid);
        return cudaSuccess;
    });
}

/// cuDeviceGetUuid as it was before CUDA 11.4.
CUresult tell_uuid_of_gpu(CUuuid* uuid, CUdevice index) {
    return tell_uuid("cuDeviceGetUuid", uuid, index, uuid_of_gpu);
}

/// The newest function of the name that is no newer than the version.
void* find_entry_point(std::string_view name, unsigned version) {
    if (name == "cuDeviceGetUuid" && version < 11040)
        return reinterpret_cast<void*>(tell_uuid_of_gpu);
    static const EntryPoint all[] = {
        entry("cuCtxGetCurrent", cuCtxGetCurrent),
        entry("cuCtxSetCurrent", cuCtxSetCurrent),
        entry("cuStreamGetCtx", cuStreamGetCtx),
        entry("cuThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode),
        entry("cuCtxGetDevice", current_device),
        entry("cuStreamWriteValue32", cuStreamWriteValue32),
        entry("cuStreamWaitValue32", cuStreamWaitValue32),
        entry("cuStreamBatchMemOp", cuStreamBatchMemOp),
        entry("cuDeviceGetUuid", cuDeviceGetUuid),
        entry("cuPointerGetAttribute", cuPointerGetAttribute),
        entry("cuPointerGetAttributes", cuPointerGetAttributes),
    };
    if (name.ends_with("_v2")) name.remove_suffix(3);
    const auto* found = std::find_if(std::begin(all), std::end(all),
                                     [&](const auto& each) { return each.name == name; });
    return found == std::end(all) ? nullptr : found->function;
}

}  // namespace
}  // namespace guozhuang::emulated_cuda

using namespace guozhuang::emulated_cuda;

CUresult cuCtxGetCurrent(CUcontext* context) {
    return driver_call(__func__, without_device, [&] {
        *context = context_of(current_device_or_null(), current_own_context());
        return cudaSuccess;
    });
}

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice index) {
    return driver_call(__func__, without_device, [&] {
        auto* device = device_or_null(index);
        require(device != nullptr, cudaErrorInvalidDevice);
        auto& own = own_contexts().add(*device);
        set_current_context(own);
        *context = context_of(device, &own);
        return cudaSuccess;
    });
}

CUresult cuCtxSetCurrent(CUcontext context) {
    return driver_call(__func__, without_device, [&] {
        if (auto* own = own_contexts().find(context)) {
            set_current_context(*own);
            return cudaSuccess;
        }
        auto* device = reinterpret_cast<Device*>(context);
        require(!device || std::find(devices().begin(), devices().end(), device) != devices().end(),
                cudaErrorDeviceUninitialized);
        set_current_device(device);
        return cudaSuccess;
    });
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    return driver_call(__func__, usual, [&] {
        const auto found = stream_of(stream);
        *context = context_of(&found->device(), found->own_context());
        return cudaSuccess;
    });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags) {
    return driver_call(__func__, usual, [&] {
        submit(*stream_of(stream), Stream::Actor::copy, write_of(address, value, flags));
        return cudaSuccess;
    });
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
    return driver_call(__func__, usual, [&] {
        const auto on = stream_of(stream);
        submit(*on, Stream::Actor::copy, wait_of(on->device(), address, value, flags));
        return cudaSuccess;
    });
}

/// All of them, or none if one is refused.
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                            unsigned flags) {
    return driver_call(__func__, usual, [&] {
        require(count > 0 && count < 256 && flags == 0, cudaErrorInvalidValue);
        const auto on = stream_of(stream);
        std::vector<Work> all;
        for (unsigned i = 0; i < count; ++i) all.push_back(work_of(on->device(), operations[i]));
        for (auto& each : all) submit(*on, Stream::Actor::copy, std::move(each));
        return cudaSuccess;
    });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice index) {
    return tell_uuid(__func__, uuid, index, uuid_of);
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    return driver_call(__func__, without_device, [&] {
        const auto memory = find_memory(pointer_of(address));
        require(memory != nullptr, cudaErrorInvalidValue);
        return attribute_of(*memory, attribute, address, data);
    });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
    return driver_call(__func__, without_device, [&] {
        // For memory that CUDA does not know the answers stay as they are, zero by convention.
        if (const auto memory = find_memory(pointer_of(address)))
            for (unsigned i = 0; i < count; ++i)
                attribute_of(*memory, attributes[i], address, data[i]);
        return cudaSuccess;
    });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    return call(__func__, without_device, [&] {
        *function = find_entry_point(name, version);
        if (result)
            *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
        return cudaSuccess;
    });
}
