// Rules that end a process, settings of the environment, and failures on demand.

#include "support/emulated_cuda/kernel.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <span>
#include <thread>

#include "emulation/child.hpp"
#include "emulation/cuda_objects.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/sanitizer.hpp"
#include "support/runner/temporary_directory.hpp"

using namespace guozhuang::test;

namespace {

bool is_in_force(const std::string& rule) {
    return std::string(emulated_cuda_rules()).find("\nin force: " + rule) != std::string::npos;
}

const ChildCase host_function("call from a host function", [](const Arguments&) {
    const TestStream stream;
    cudaLaunchHostFunc(
        stream.native, [](void*) { cudaGetLastError(); }, nullptr);
    return static_cast<int>(cudaStreamSynchronize(stream.native));
});

const ChildCase host_access("touch device memory", [](const Arguments&) {
    return int{device_memory<volatile char>(64)[3]};
});

const ChildCase host_function_access("touch from a host function", [](const Arguments&) {
    const TestStream stream;
    auto* memory = device_memory<char>(64);
    cudaLaunchHostFunc(
        stream.native, [](void* data) { *static_cast<volatile char*>(data) = 1; }, memory);
    return static_cast<int>(cudaStreamSynchronize(stream.native));
});

const ChildCase destroyed_stream("use a destroyed stream", [](const Arguments&) {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamDestroy(stream);
    return cudaStreamQuery(stream) == cudaSuccess ? 0 : 1;
});

const ChildCase destroyed_event("use a destroyed event", [](const Arguments&) {
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventDestroy(event);
    return cudaEventRecord(event, nullptr) == cudaSuccess ? 0 : 1;
});

const ChildCase pool_memory("share pool memory", [](const Arguments&) {
    void* memory = nullptr;
    cudaMallocAsync(&memory, 64, nullptr);
    cudaIpcMemHandle_t handle;
    return static_cast<int>(cudaIpcGetMemHandle(&handle, memory));
});

__global__ void write_at(char* memory, std::size_t at) {
    memory[at] = 1;
}

void launch_write(char* memory, std::size_t at) {
    void* arguments[] = {&memory, &at};
    cudaLaunchKernel(write_at, dim3(1), dim3(1), arguments);
}

const ChildCase beyond("write beyond memory", [](const Arguments&) {
    launch_write(device_memory<char>(256), 256);
    return static_cast<int>(cudaDeviceSynchronize());
});

__global__ void read_four(const float4* from, float4* into) {
    *into = *from;
}

/// With an argument, at an address that is no multiple of 16 bytes.
const ChildCase four_numbers("read four numbers", [](const Arguments& arguments) {
    auto* memory = device_memory<float>(64);
    const auto* from = reinterpret_cast<const float4*>(memory + (arguments.empty() ? 4 : 5));
    auto* into = reinterpret_cast<float4*>(memory);
    void* launched[] = {&from, &into};
    cudaLaunchKernel(read_four, dim3(1), dim3(1), launched);
    return static_cast<int>(cudaDeviceSynchronize());
});

__global__ void note_block(unsigned* order, unsigned* noted) {
    order[atomicAdd(noted, 1)] = blockIdx.x;
}

/// Prints the order in which 32 blocks were run, of two launches.
const ChildCase order_of_blocks("tell the order of blocks", [](const Arguments&) {
    auto* order = pinned_memory<unsigned>(64);
    auto* noted = pinned_memory<unsigned>(1);
    *noted = 0;
    void* arguments[] = {&order, &noted};
    for (int launch = 0; launch < 2; ++launch)
        cudaLaunchKernel(note_block, dim3(32), dim3(1), arguments);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    for (const unsigned block : std::span(order, 64)) std::printf("%u ", block);
    std::puts("");
    return 0;
});

/// How many of three allocations do not wait for a stream that is held.
const ChildCase allocations("allocate beside a held stream", [](const Arguments&) {
    const TestStream stream;
    std::vector<std::byte> pageable(4096);
    std::atomic<int> allocated = 0;
    const Gate gate;
    gate.hold(stream.native);
    std::jthread device_side([&] { device_memory<char>(64), ++allocated; });
    std::jthread host_side([&] { pinned_memory<char>(64), ++allocated; });
    std::jthread registers([&] {
        cudaHostRegister(pageable.data(), pageable.size(), cudaHostRegisterDefault);
        ++allocated;
    });
    let_streams_run();
    const int before = allocated;
    gate.open();
    return before;
});

const ChildCase without_barrier("write a word without a barrier", [](const Arguments&) {
    CUstreamBatchMemOpParams write{};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = address_of(pinned_memory<int>(1));
    write.writeValue.flags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    return static_cast<int>(cuStreamBatchMemOp(nullptr, 1, &write, 0));
});

/// With an argument, enables access first.
const ChildCase peer("write to a peer", [](const Arguments& arguments) {
    cudaSetDevice(1);
    auto* memory = device_memory<char>(256);
    cudaSetDevice(0);
    if (!arguments.empty() && cudaDeviceEnablePeerAccess(1, 0) != cudaSuccess) return 1;
    launch_write(memory, 0);
    return static_cast<int>(cudaDeviceSynchronize());
});

/// Says of each device whether device 0 reaches its memory.
const ChildCase peers("tell the peers", [](const Arguments&) {
    int devices = 0;
    cudaGetDeviceCount(&devices);
    for (int device = 0; device < devices; ++device) {
        int can = 0;
        if (cudaDeviceCanAccessPeer(&can, 0, device) != cudaSuccess) return 1;
        std::printf("%d", can);
    }
    std::printf("\n");
    return 0;
});

const ChildCase broken("break the device", [](const Arguments&) {
    const TestStream stuck, other;
    const TestEvent event;
    const Gate gate;
    static std::atomic<bool> ran = false;
    gate.hold(stuck.native);
    cudaLaunchHostFunc(
        stuck.native, [](void*) { ran = true; }, nullptr);
    cudaEventRecord(event.native, stuck.native);
    std::jthread breaks([] {
        let_streams_run();
        emulated_cuda_break_device(0);
    });
    if (cudaStreamSynchronize(stuck.native) != cudaErrorIllegalAddress) return 1;
    void* memory = nullptr;
    if (cudaMalloc(&memory, 64) != cudaErrorIllegalAddress) return 2;
    if (cudaEventQuery(event.native) != cudaErrorIllegalAddress) return 3;
    if (cudaStreamQuery(other.native) != cudaErrorIllegalAddress) return 4;
    if (cudaGetLastError() != cudaErrorIllegalAddress) return 5;
    auto elsewhere = cudaSuccess;  // a thread that has chosen no device
    std::thread([&] { elsewhere = cudaMalloc(&memory, 64); }).join();
    if (elsewhere != cudaErrorIllegalAddress) return 6;
    let_streams_run();
    return ran ? 7 : 0;
});

/// The errors of three allocations and of one query, as an exit code cannot say them.
const ChildCase thrice("allocate thrice", [](const Arguments&) {
    void* memory = nullptr;
    for (int i = 0; i < 3; ++i) std::printf("%d ", cudaMalloc(&memory, 64));
    std::printf("%d\n", cudaStreamQuery(nullptr));
    return 0;
});

const ChildCase one_word("write a word", [](const Arguments&) {
    auto* word = pinned_memory<std::uint32_t>(1);
    return static_cast<int>(cuStreamWriteValue32(nullptr, address_of(word), 1, 0));
});

/// The devices by their UUIDs' last byte.
const ChildCase devices("list the devices", [](const Arguments&) {
    int count = 0;
    std::printf("%d:", cudaGetDeviceCount(&count));
    for (int i = 0; i < count; ++i) {
        CUuuid uuid;
        cuDeviceGetUuid(&uuid, i);
        std::printf(" %d", uuid.bytes[15]);
    }
    std::puts("");
    return 0;
});

/// The last bytes of the first device's UUID, and of that which it had before CUDA 11.4.
const ChildCase uuids("tell the UUIDs", [](const Arguments&) {
    for (const unsigned version : {11040U, 9020U}) {
        void* found = nullptr;
        cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &found, version, cudaEnableDefault,
                                         nullptr);
        CUuuid uuid;
        if (reinterpret_cast<decltype(&cuDeviceGetUuid)>(found)(&uuid, 0) != CUDA_SUCCESS) return 1;
        std::printf("%d ", static_cast<unsigned char>(uuid.bytes[15]));
    }
    std::puts("");
    return 0;
});

const ChildCase stuck("leave with a stuck stream", [](const Arguments&) {
    static const auto& stream = *new TestStream;
    static const auto& gate = *new Gate;
    gate.hold(stream.native);
    return 7;
});

/// Holds one stream; seven of eight others must come to their ends. Returns whether the eighth also
/// does.
const ChildCase nine_streams("hold one of nine streams", [](const Arguments&) {
    for (int i = 0; i < 20; ++i) const TestStream ended;  // which have left their queues
    auto* written = pinned_memory<std::uint32_t>(1);
    const Gate gate;
    const TestStream held;
    gate.hold(held.native);
    std::array<TestStream, 8> others;
    for (const auto& other : others) cuStreamWriteValue32(other.native, address_of(written), 1, 0);
    for (const auto& other : std::span(others).first(7)) cudaStreamSynchronize(other.native);
    let_streams_run();
    return cudaStreamQuery(others.back().native) == cudaSuccess ? 1 : 0;
});

}  // namespace

TEST_CASE("a call from a host function ends the process") {
    CHECK(is_broken_rule(end_of("call from a host function"),
                         "a host function that a stream runs called CUDA (cudaGetLastError)"));
}

TEST_CASE("a host thread that touches device memory ends the process") {
    if (!is_in_force("no host thread touches device memory"))
        GUOZHUANG_SKIP("no protection keys here");
    CHECK(is_broken_rule(end_of("touch device memory"), "a host thread touched device memory"));
    const auto end = end_of("touch from a host function");
    CHECK(end.signal == SIGABRT);
    CHECK(end.output.find("rule: ") != std::string::npos);
}

TEST_CASE("a destroyed stream or event that is used ends the process") {
    CHECK(is_broken_rule(end_of("use a destroyed stream"), "a destroyed stream is used"));
    CHECK(is_broken_rule(end_of("use a destroyed event"), "a destroyed event is used"));
}

TEST_CASE("memory of the pool that is shared ends the process") {
    CHECK(
        is_broken_rule(end_of("share pool memory"), "memory of a pool, mapped or managed memory"));
}

TEST_CASE("a kernel that reaches beyond memory or to a stranger's ends the process") {
    if (!is_in_force("no kernel touches memory of a device without peer access"))
        GUOZHUANG_SKIP("no protection keys here");
    const Child::Environment two{{"EMULATED_CUDA_DEVICES", "2"}};
    CHECK(is_broken_rule(end_of("write beyond memory"),
                         "a kernel or copy reached beyond the end of device memory"));
    CHECK(is_broken_rule(end_of("write to a peer", two),
                         "a kernel touched memory of a device without peer access"));
    CHECK(end_of("write to a peer", two, {"enabled"}).exit_code == 0);
}

TEST_CASE("a kernel that reads at an address which is not aligned ends the process") {
    if (under_sanitizer) GUOZHUANG_SKIP("signals are the sanitizer's");
    CHECK(end_of("read four numbers").exit_code == 0);
    CHECK(is_broken_rule(end_of("read four numbers", {}, {"misaligned"}),
                         "a kernel read or wrote memory at an address that is not aligned"));
}

TEST_CASE("blocks run in random order, the same for a seed that is printed") {
    const auto with = [](const char* seed) {
        return end_of("tell the order of blocks", {{"EMULATED_CUDA_SEED", seed}}).output;
    };
    const auto seven = with("7");
    CHECK(seven.find("EMULATED_CUDA_SEED=7\n") != std::string::npos);
    CHECK(with("7") == seven);
    CHECK(with("8").substr(seven.find('\n')) != seven.substr(seven.find('\n')));
    CHECK(seven.find("0 1 2 3 4 5 6 7 8") == std::string::npos);
}

TEST_CASE("allocations wait for the device if they are to") {
    const auto with = [](const char* value) {
        return end_of("allocate beside a held stream", {{"EMULATED_CUDA_ALLOCATIONS_WAIT", value}})
            .exit_code;
    };
    CHECK(with("1") == 0);
}

TEST_CASE("a word that is written without a memory barrier ends the process") {
    CHECK(is_broken_rule(end_of("write a word without a barrier"),
                         "a word is written without a memory barrier"));
}

TEST_CASE("all GPUs reach each other's memory, or neighbours do, or none does") {
    const auto told = [](const char* access) {
        return Child("tell the peers",
                     {{"EMULATED_CUDA_DEVICES", "4"}, {"EMULATED_CUDA_PEERS", access}})
            .line();
    };
    CHECK(told("1") == "0111");
    CHECK(told("ring") == "0101");
    CHECK(told("0") == "0000");
}

TEST_CASE("a device that fails stays failed, and drops what its streams had to do") {
    CHECK(end_of("break the device").exit_code == 0);
}

TEST_CASE("the nth call of a function fails, once or for ever") {
    const auto with = [](const char* failure) {
        return Child("allocate thrice", {{"EMULATED_CUDA_FAIL", failure}}).line();
    };
    CHECK(with("cudaMalloc:2:2") == "0 2 0 0");
    CHECK(with("cudaMalloc:2") == "0 999 0 0");
    CHECK(with("cudaMalloc:2:700") == "0 700 700 700");
    CHECK(with("cudaFree:1") == "0 0 0 0");
    CHECK(end_of("write a word").exit_code == 0);
    CHECK(end_of("write a word", {{"EMULATED_CUDA_FAIL", "cuStreamWriteValue32:1:1"}}).exit_code ==
          1);
    CHECK(is_broken_rule(end_of("allocate thrice", {{"EMULATED_CUDA_FAIL", "cudaMalloc:x"}}),
                         "EMULATED_CUDA_FAIL has an invalid value"));
}

TEST_CASE("the environment says which devices there are") {
    const auto with = [](const Child::Environment& environment) {
        return Child("list the devices", environment).line();
    };
    CHECK(with({}) == "0: 0");
    CHECK(with({{"EMULATED_CUDA_DEVICES", "4"}}) == "0: 0 1 2 3");
    CHECK(with({{"EMULATED_CUDA_DEVICES", "0"}}) == "100:");
    CHECK(with({{"EMULATED_CUDA_DEVICES", "4"}, {"CUDA_VISIBLE_DEVICES", "2,0"}}) == "0: 2 0");
    CHECK(with({{"CUDA_VISIBLE_DEVICES", ""}}) == "100:");
    CHECK(with({{"EMULATED_CUDA_DRIVER", "0"}}) == "35:");
    CHECK(with({{"EMULATED_CUDA_DRIVER", "12000"}}) == "35:");
    CHECK(Child("allocate thrice", {{"EMULATED_CUDA_MEMORY_MIB", "0"}}).line() == "2 2 2 0");
}

TEST_CASE("a process sees one MIG slice of the GPU, which has an identity of its own since 11.4") {
    const auto with = [](const char* test, const char* visible) {
        return Child(test, {{"EMULATED_CUDA_DEVICES", "3"},
                            {"EMULATED_CUDA_MIG", "1"},
                            {"CUDA_VISIBLE_DEVICES", visible}})
            .line();
    };
    CHECK(with("list the devices", "2,0") == "0: 2");
    CHECK(with("tell the UUIDs", "2") == "2 255 ");
    CHECK(with("tell the UUIDs", "0") == "0 255 ");
}

TEST_CASE("streams beyond the eighth share a queue, unless there are to be more") {
    CHECK(end_of("hold one of nine streams").exit_code == 0);
    CHECK(end_of("hold one of nine streams", {{"CUDA_DEVICE_MAX_CONNECTIONS", "9"}}).exit_code ==
          1);
}

TEST_CASE("a process ends though a stream is stuck") {
    CHECK(end_of("leave with a stuck stream").exit_code == 7);
}

TEST_CASE("a trace has the number of calls of each function") {
    const TemporaryDirectory directory;
    Child child("allocate thrice", {{"EMULATED_CUDA_TRACE", directory / "trace"}});
    const auto path = directory / ("trace." + std::to_string(child.process()));
    CHECK(child.wait().exit_code == 0);
    std::ifstream file(path);
    const std::string trace{std::istreambuf_iterator<char>(file), {}};
    CHECK(trace == "3 cudaMalloc\n1 cudaStreamQuery\n");
}
