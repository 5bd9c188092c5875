// Tests what CUDA can do on this machine: `gpu_probe CHECK` prints one JSON object, or says on
// standard error what failed, and exits with 1, or with 77 if there is no GPU to use. A check may
// hang, so run it with a timeout.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::duration;
using std::chrono::steady_clock;

void check(cudaError_t status, const std::string& what) {
    if (status != cudaSuccess) throw std::runtime_error(what + ": " + cudaGetErrorString(status));
}

struct Stream {
    cudaStream_t native = nullptr;
    Stream() { check(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), "no stream"); }
    ~Stream() { cudaStreamDestroy(native); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    void synchronize() const { check(cudaStreamSynchronize(native), "the stream has failed"); }
};

template <class T>
std::shared_ptr<T> device_memory(std::size_t count) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, count * sizeof(T)), "no device memory");
    return {static_cast<T*>(memory), [](T* each) { cudaFree(each); }};
}

template <class T>
std::shared_ptr<T> pinned_memory(std::size_t count) {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault), "no pinned memory");
    std::memset(memory, 0, count * sizeof(T));
    return {static_cast<T*>(memory), [](T* each) { cudaFreeHost(each); }};
}

// --- facts ---------------------------------------------------------------------------------------

/// The version of NCCL; 0 if there is none.
int nccl_version() {
    int version = 0;
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return 0;
    using GetVersion = int(int*);
    if (const auto get = reinterpret_cast<GetVersion*>(dlsym(library, "ncclGetVersion")))
        get(&version);
    return version;
}

std::string uuid_of(const cudaDeviceProp& device) {
    std::string text = "GPU-";
    for (std::size_t i = 0; i < sizeof device.uuid.bytes; ++i) {
        std::array<char, 4> digits{};
        std::snprintf(digits.data(), digits.size(), "%02x",
                      static_cast<unsigned char>(device.uuid.bytes[i]));
        text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits.data());
    }
    return text;
}

/// There is no GPU to use.
struct NoGpu : std::runtime_error {
    using std::runtime_error::runtime_error;
};

Json facts() {
    int driver = 0, runtime = 0, devices = 0;
    check(cudaDriverGetVersion(&driver), "no driver");
    check(cudaRuntimeGetVersion(&runtime), "no runtime");
    if (driver == 0) throw NoGpu("no NVIDIA driver");
    const auto status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver)
        throw NoGpu(cudaGetErrorString(status));
    check(status, "no device");
    Json all = Json::array();
    for (int i = 0; i < devices; ++i) {
        cudaDeviceProp device{};
        check(cudaGetDeviceProperties(&device, i), "no properties");
        all.push_back(
            {{"name", device.name},
             {"uuid", uuid_of(device)},
             {"compute", std::to_string(device.major) + "." + std::to_string(device.minor)},
             {"multiprocessors", device.multiProcessorCount},
             {"memory", device.totalGlobalMem}});
    }
    return {{"driver", driver}, {"runtime", runtime}, {"nccl", nccl_version()}, {"devices", all}};
}

// --- IPC -----------------------------------------------------------------------------------------

constexpr std::size_t ipc_bytes = 1 << 20;
constexpr int written_by_owner = 0x5a, written_by_other = 0xa5;

bool are_all(const void* device_memory, int value) {
    std::vector<unsigned char> bytes(ipc_bytes);
    check(cudaMemcpy(bytes.data(), device_memory, ipc_bytes, cudaMemcpyDeviceToHost), "no copy");
    for (const auto byte : bytes)
        if (byte != value) return false;
    return true;
}

/// The other process: sees what the owner wrote, and writes over it.
int open_ipc(int file) {
    cudaIpcMemHandle_t handle{};
    if (::read(file, &handle, sizeof handle) != sizeof handle) return 2;
    void* memory = nullptr;
    check(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "cannot open");
    if (!are_all(memory, written_by_owner)) throw std::runtime_error("other contents");
    check(cudaMemset(memory, written_by_other, ipc_bytes), "cannot write");
    check(cudaDeviceSynchronize(), "cannot write");
    check(cudaIpcCloseMemHandle(memory), "cannot close");
    return 0;
}

/// This process owns the memory. The other one is started anew, since CUDA does not survive fork().
Json ipc(const std::string& program) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
    const auto child = ::fork();
    if (child == 0) {
        ::execl(program.c_str(), program.c_str(), "open_ipc", std::to_string(ends[0]).c_str(),
                nullptr);
        ::_exit(127);
    }
    const auto memory = device_memory<std::byte>(ipc_bytes);
    check(cudaMemset(memory.get(), written_by_owner, ipc_bytes), "cannot write");
    check(cudaDeviceSynchronize(), "cannot write");
    cudaIpcMemHandle_t handle{};
    check(cudaIpcGetMemHandle(&handle, memory.get()), "cannot export");
    if (::write(ends[1], &handle, sizeof handle) != sizeof handle)
        throw std::runtime_error("cannot tell the other process");
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        throw std::runtime_error("the other process cannot use the memory");
    if (!are_all(memory.get(), written_by_other))
        throw std::runtime_error("what the other process wrote is not there");
    return {{"bytes", ipc_bytes}};
}

// --- words ---------------------------------------------------------------------------------------

using WordFunction = CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned);

WordFunction* word_function(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion(name, &found, 11070, cudaEnableDefault, &result), name);
    if (result != cudaDriverEntryPointSuccess || found == nullptr)
        throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<WordFunction*>(found);
}

void expect(CUresult status, const std::string& what) {
    if (status != CUDA_SUCCESS)
        throw std::runtime_error(what + ": error " + std::to_string(status));
}

/// One stream waits for a word that another writes: there and back. Returns microseconds of a round
/// trip.
double pass_word(CUdeviceptr word) {
    auto* const wait = word_function("cuStreamWaitValue32");
    auto* const write = word_function("cuStreamWriteValue32");
    constexpr unsigned rounds = 100;
    const Stream one, other;
    const auto start = steady_clock::now();
    for (unsigned i = 1; i <= 2 * rounds; i += 2) {
        expect(write(one.native, word, i, CU_STREAM_WRITE_VALUE_DEFAULT), "cannot write");
        expect(wait(other.native, word, i, CU_STREAM_WAIT_VALUE_GEQ), "cannot wait");
        expect(write(other.native, word, i + 1, CU_STREAM_WRITE_VALUE_DEFAULT), "cannot write");
        expect(wait(one.native, word, i + 1, CU_STREAM_WAIT_VALUE_GEQ), "cannot wait");
    }
    one.synchronize();
    other.synchronize();
    return duration<double, std::micro>(steady_clock::now() - start).count() / rounds;
}

CUdeviceptr address_of(void* memory) {
    return reinterpret_cast<CUdeviceptr>(memory);
}

Json pinned_words() {
    const auto word = pinned_memory<std::uint32_t>(1);
    return {{"round_trip_us", pass_word(address_of(word.get()))}};
}

/// Memory that processes can share, registered with CUDA.
Json registered_words() {
    constexpr std::size_t page = 4096;
    const int file = ::memfd_create("gpu_probe", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, page) != 0) throw std::runtime_error("no memory file");
    void* const memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map the memory file");
    check(cudaHostRegister(memory, page, cudaHostRegisterDefault), "cannot register");
    void* on_device = nullptr;
    check(cudaHostGetDevicePointer(&on_device, memory, 0), "no address");
    Json result = {{"round_trip_us", pass_word(address_of(on_device))}};
    check(cudaHostUnregister(memory), "cannot unregister");
    ::munmap(memory, page);
    return result;
}

Json device_words() {
    const auto word = device_memory<std::uint32_t>(1);
    check(cudaMemset(word.get(), 0, sizeof(std::uint32_t)), "cannot write");
    check(cudaDeviceSynchronize(), "cannot write");
    return {{"round_trip_us", pass_word(address_of(word.get()))}};
}

// --- capture -------------------------------------------------------------------------------------

/// While one thread captures a stream in the strictest mode, another one works, in the relaxed mode
/// as the library's threads do: the capture stays valid.
Json capture() {
    const Stream captured;
    const auto memory = device_memory<std::byte>(256);
    check(cudaStreamBeginCapture(captured.native, cudaStreamCaptureModeGlobal), "cannot begin");
    std::exception_ptr problem;
    std::thread([&] {
        try {
            auto mode = cudaStreamCaptureModeRelaxed;
            check(cudaThreadExchangeStreamCaptureMode(&mode), "cannot relax");
            const Stream own;
            cudaEvent_t event = nullptr;
            check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "no event");
            check(cudaEventRecord(event, own.native), "cannot record");
            own.synchronize();
            check(cudaEventQuery(event), "cannot query");
            check(cudaEventDestroy(event), "cannot destroy");
            device_memory<std::byte>(1 << 20);
        } catch (...) {
            problem = std::current_exception();
        }
    }).join();
    check(cudaMemsetAsync(memory.get(), 1, 256, captured.native), "cannot capture");
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(captured.native, &graph), "the capture is no longer valid");
    std::size_t nodes = 0;
    check(cudaGraphGetNodes(graph, nullptr, &nodes), "no graph");
    check(cudaGraphDestroy(graph), "no graph");
    if (problem) std::rethrow_exception(problem);
    return {{"nodes", nodes}};
}

// --- copies --------------------------------------------------------------------------------------

/// GB/s of the median of some copies.
double bandwidth(std::size_t bytes, const std::function<void(cudaStream_t)>& enqueue) {
    const Stream stream;
    std::vector<double> seconds;
    for (int i = 0; i < 6; ++i) {
        const auto start = steady_clock::now();
        enqueue(stream.native);
        stream.synchronize();
        if (i > 0) seconds.push_back(duration<double>(steady_clock::now() - start).count());
    }
    std::ranges::sort(seconds);
    return static_cast<double>(bytes) / seconds[seconds.size() / 2] / 1e9;
}

Json copies() {
    constexpr std::size_t bytes = std::size_t{64} << 20;
    const auto one = device_memory<std::byte>(bytes), other = device_memory<std::byte>(bytes);
    const auto host = pinned_memory<std::byte>(bytes);
    const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
        return [=](cudaStream_t stream) {
            check(cudaMemcpyAsync(to, from, bytes, kind, stream), "no copy");
        };
    };
    const auto *const from = other.get(), *const pinned = host.get();
    return {{"device_GBps", bandwidth(2 * bytes, copy(one.get(), from, cudaMemcpyDeviceToDevice))},
            {"to_host_GBps", bandwidth(bytes, copy(host.get(), from, cudaMemcpyDeviceToHost))},
            {"from_host_GBps", bandwidth(bytes, copy(one.get(), pinned, cudaMemcpyHostToDevice))}};
}

/// Has a context until standard input ends.
Json hold() {
    const auto memory = device_memory<std::byte>(1);
    while (std::getchar() != EOF) {
    }
    return {};
}

/// Whether a copy may reach from one allocation into the next one, where two touch.
Json touching() {
    constexpr std::size_t bytes = 4096;
    std::vector<std::shared_ptr<std::byte>> all;
    for (int i = 0; i < 16; ++i) all.push_back(device_memory<std::byte>(bytes));
    const auto host = pinned_memory<std::byte>(2 * bytes);
    for (std::size_t i = 1; i < all.size(); ++i) {
        if (all[i - 1].get() + bytes != all[i].get()) continue;
        const auto status =
            cudaMemcpy(host.get(), all[i - 1].get(), 2 * bytes, cudaMemcpyDeviceToHost);
        if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
        return {{"copied", 2 * bytes}};
    }
    throw std::runtime_error("no two allocations touch");
}

int run(std::span<char*> arguments) {
    const std::string program = "/proc/self/exe", wanted = arguments.size() > 1 ? arguments[1] : "";
    if (wanted == "open_ipc") return open_ipc(std::atoi(arguments[2]));
    const std::map<std::string, std::function<Json()>> checks = {
        {"facts", facts},
        {"ipc", [&] { return ipc(program); }},
        {"pinned_words", pinned_words},
        {"registered_words", registered_words},
        {"device_words", device_words},
        {"capture", capture},
        {"copies", copies},
        {"touching", touching},
        {"hold", hold},
    };
    std::puts(checks.at(wanted)().dump().c_str());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(std::span(argv, static_cast<std::size_t>(argc)));
    } catch (const NoGpu& reason) {
        std::fprintf(stderr, "%s\n", reason.what());
        return 77;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
