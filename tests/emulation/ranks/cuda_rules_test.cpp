// CUDA calls that a program may make around operations, and calls that the library avoids.

#include "emulation/ranks/kernels.hpp"

#include <cstdint>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr std::size_t count = 200'003;

/// Between two slow kernels on that stream: null for one that the options do not name.
void allreduce_on(Report& report, std::optional<cudaStream_t> given, const std::string& what) {
    Trainer trainer;
    const auto values = trainer.put_elements(std::vector<float>(count, -1));
    const auto seen = Trainer::device_memory_of<float>(count);
    trainer.synchronize();
    const auto native = given.value_or(nullptr);
    const StreamRef stream{trainer.stream().device, native};
    launch_set(values.get(), count, 2, native);
    AllreduceOptions options{.name = what, .op = ReduceOp::average};
    if (given) options.stream = stream;
    allreduce_async(trainer.view(values, count), options).wait(stream);
    launch_scale(values.get(), seen.get(), count, 3, native);
    expect(cudaStreamSynchronize(native), "the stream has failed");
    report.expect(are_all(trainer.elements(seen, count), 6), "by " + what);
}

/// A thread's stream is found on that thread.
void default_streams(Session&, Report& report) {
    allreduce_on(report, {}, "no stream");
    allreduce_on(report, nullptr, "the null stream");
    allreduce_on(report, cudaStreamLegacy, "the legacy stream");
    allreduce_on(report, cudaStreamPerThread, "this thread's stream");
    std::thread([&] {
        allreduce_on(report, cudaStreamPerThread, "another thread's stream");
    }).join();
}

template <auto allocate>
void allreduce_in(Trainer& trainer, Report& report, const std::string& what) {
    void* memory = nullptr;
    expect(allocate(&memory, count * sizeof(float), trainer.native()), "no memory");
    const std::shared_ptr<float> values(static_cast<float*>(memory),
                                        [](float* each) { cudaFree(each); });
    launch_set(values.get(), count, 2, trainer.native());
    allreduce(trainer.view(values, count),
              {.op = ReduceOp::average, .prescale = 2, .stream = trainer.stream()});
    report.expect(are_all(trainer.elements(values, count), 4), what);
}

cudaError_t allocate_in_pool(void** memory, std::size_t bytes, cudaStream_t stream) {
    return cudaMallocAsync(memory, bytes, stream);
}

cudaError_t allocate_managed(void** memory, std::size_t bytes, cudaStream_t) {
    return cudaMallocManaged(memory, bytes, cudaMemAttachGlobal);
}

/// Neither can be opened by another process.
void kinds_of_memory(Session&, Report& report) {
    Trainer trainer;
    allreduce_in<allocate_in_pool>(trainer, report, "memory of a pool");
    allreduce_in<allocate_managed>(trainer, report, "managed memory");
}

/// Counts, by name, of the calls so far that allocate, free, load or wait.
std::map<std::string, std::uint64_t> slow_calls() {
    std::map<std::string, std::uint64_t> all;
    for (const auto* name : {"cudaMalloc",
                             "cudaMallocAsync",
                             "cudaMallocManaged",
                             "cudaMallocHost",
                             "cudaHostAlloc",
                             "cudaHostRegister",
                             "cudaHostUnregister",
                             "cudaFree",
                             "cudaFreeAsync",
                             "cudaFreeHost",
                             "cudaIpcGetMemHandle",
                             "cudaIpcOpenMemHandle",
                             "cudaIpcCloseMemHandle",
                             "cudaStreamCreateWithPriority",
                             "cudaStreamDestroy",
                             "cudaEventCreateWithFlags",
                             "cudaEventDestroy",
                             "cudaFuncGetAttributes",
                             "cudaStreamSynchronize",
                             "cudaEventSynchronize",
                             "cudaDeviceSynchronize",
                             "cudaMemcpy"})
        all[name] = emulated_cuda_calls_of(name);
    return all;
}

/// Every operation that gives no memory of the library's away.
void run_operations(Session& session, Trainer& trainer, const std::shared_ptr<float>& values,
                    const std::shared_ptr<float>& output) {
    const auto view = trainer.view(values, count);
    const auto ranks = static_cast<std::size_t>(session.size());
    allreduce(view, {.op = ReduceOp::average, .stream = trainer.stream()});
    broadcast(view, 0, {.stream = trainer.stream()});
    grouped_allreduce(std::vector{trainer.view(values, 5), trainer.view(output, 7)},
                      {.op = ReduceOp::average, .stream = trainer.stream()});
    const auto part = trainer.view(values, count / ranks);
    all_gather(part, {.stream = trainer.stream(),
                      .outputs = {trainer.view(output, count / ranks * ranks)}});
}

/// The slow calls of ten steps of a training loop: nothing, or what they are.
std::string slow_calls_of(const std::function<void()>& step) {
    const auto before = slow_calls();
    for (int i = 0; i < 10; ++i) step();
    std::string found;
    for (const auto& [name, calls] : slow_calls())
        if (calls != before.at(name)) found += text_of(calls - before.at(name), " ", name, ", ");
    return found;
}

/// Pools grow until they have what is in use at once, which the devices' pace decides.
void hot_path(Session& session, Report& report) {
    Trainer trainer;
    const auto values = trainer.put_elements(std::vector<float>(count, 1)),
               output = trainer.put_elements(std::vector<float>(count, 1)),
               gradients = trainer.put_elements(std::vector<float>(count, 1));
    Plan plan({{{"gradients", trainer.view(gradients, count)}}},
              {.op = ReduceOp::average, .stream = trainer.stream()});
    const auto step = [&] {
        run_operations(session, trainer, values, output);
        plan.ready(0);
        plan.wait(trainer.stream());
    };
    std::string found;
    for (int attempt = 0; attempt < 20; ++attempt) {
        found = slow_calls_of(step);
        std::int64_t all = found.empty() ? 0 : 1;
        allreduce(all);
        if (all == 0) break;
    }
    plan.wait();
    report.expect_equal(found, std::string(), "calls in ten steps");
    report.expect(are_all(trainer.elements(gradients, count), 1), "the averages");
}

/// A thread keeps the context and the device that it has, and one that has none gets none.
void contexts(Session&, Report& report) {
    Trainer trainer;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    trainer.synchronize();
    const auto run = [&](const std::string& what) {
        CUcontext before = nullptr, after = nullptr;
        cuCtxGetCurrent(&before);
        const auto handle =
            allreduce_async(trainer.view(values, count),
                            {.name = what, .op = ReduceOp::average, .stream = trainer.stream()});
        handle.wait(trainer.stream());
        handle.wait();
        report.expect(cuCtxGetCurrent(&after) == CUDA_SUCCESS && after == before, what);
    };
    run("the context of the trainer's device");
    std::thread([&] { run("no context"); }).join();
    int devices = 0;
    expect(cudaGetDeviceCount(&devices), "no devices");
    expect(cudaSetDevice((trainer.device() + 1) % devices), "no device");
    run("the context of another device");
    expect(cudaSetDevice(trainer.device()), "no device");
}

}  // namespace

TEST_CASE("an operation comes after the work on a default stream, and before what follows") {
    CHECK(problems_here(default_streams) == "");
}

TEST_CASE("tensors in memory that other processes cannot open") {
    CHECK(problems_here(kinds_of_memory) == "");
}

TEST_CASE("no operation of a loop allocates, frees, loads or waits in CUDA") {
    CHECK(problems_here(hot_path) == "");
}

TEST_CASE("contexts of the program are left alone") {
    CHECK(problems_here(contexts) == "");
}
