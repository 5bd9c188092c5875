// The plugin on the emulated runtime: its own code, kernels included.

#include <cstdio>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <filesystem>
#include <guozhuang/error.hpp>
#include <unistd.h>

#include "device/nccl.hpp"
#include "device/owned_memory.hpp"
#include "device/plugin.hpp"
#include "emulation/child.hpp"
#include "emulation/cuda_objects.hpp"
#include "support/emulated_cuda/device_facts.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/oracles/device_copies.hpp"
#include "support/oracles/device_elements.hpp"
#include "support/oracles/device_streams.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::device;
using namespace guozhuang::test;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

namespace {

std::filesystem::path emulated_plugin() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
           "emulated/lib/libguozhuang_cuda.so";
}

const ChildCase reason("say why there is no driver", [](const Arguments&) {
    std::puts(load_cuda_plugin(emulated_plugin()).reason.c_str());
    return 0;
});

const ChildCase without_context("use the plugin without a context", [](const Arguments&) {
    const auto cuda = load_cuda_plugin(emulated_plugin());
    const auto memory = cuda.value->allocate(0, 64);
    wait_until_done(*cuda.value->make_stream(0));
    cuda.value->release(0, memory);
    CUcontext context = nullptr;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context) return 1;
    cudaSetDevice(0);
    return cuCtxGetCurrent(&context) == CUDA_SUCCESS && context ? 0 : 2;
});

void launch_every_kernel(Driver& driver, Stream& stream, std::span<std::byte> memory,
                         std::span<std::byte> scratch, double& sum) {
    const auto one = memory.first(memory.size() / 2), other = memory.last(memory.size() / 2);
    const std::span<const std::byte> inputs[] = {one, other};
    const Copy copies[] = {{one.first(64), other.first(64)}, {one.last(64), other.last(64)}};
    driver.copy_all(stream, copies, {});
    driver.fill(stream, one, std::as_bytes(std::span("ab", 2)));
    for (const auto dtype : all_dtypes) {
        for (const auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max})
            if (dtype != DType::boolean || op == ReduceOp::min || op == ReduceOp::max)
                driver.reduce(stream, {.op = op, .dtype = dtype}, std::span(&one, 1), inputs);
        const Copy finished{one, other, dtype};
        if (dtype == DType::i64 || dtype == DType::u64)
            driver.copy_all(stream, std::span(&finished, 1), {.divisor = 2});
        if (!is_floating(dtype)) continue;
        driver.copy_all(stream, std::span(&finished, 1), {.scale = 2});
        driver.sum_of_squares(stream, dtype, one, scratch, sum);
        driver.sum_of_squares(stream, dtype, one.subspan(size_of(dtype)), scratch, sum);
    }
}

/// The first launch of a kernel that has not been loaded would wait for the stream.
const ChildCase beside_held("launch beside a stream that is held", [](const Arguments&) {
    alarm(10);
    auto& driver = *load_cuda_plugin(emulated_plugin()).value;
    const auto stream = driver.make_stream(0);
    const auto memory = driver.allocate(0, 4096), scratch = driver.allocate(0, 1 << 20);
    const auto pinned = allocate_pinned({std::shared_ptr<void>(), &driver}, 0, sizeof(double));
    const TestStream held;
    const Gate gate;
    gate.hold(held.native);
    launch_every_kernel(driver, *stream, memory, scratch,
                        *reinterpret_cast<double*>(pinned.memory.data()));
    wait_until_done(*stream);
    return 0;
});

/// ARGUMENTS: what GUOZHUANG_NCCL says, and a file that the program has loaded before, if any.
const ChildCase which_nccl("say which NCCL", [](const Arguments& arguments) {
    if (arguments.size() > 1) dlopen(arguments[1].c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto [nccl, why_not] = load_cuda_plugin(emulated_plugin()).value->nccl(arguments.front());
    std::puts((nccl ? nccl->version() : why_not).c_str());
    return 0;
});

const ChildCase limited_nccl("say which NCCL can be limited", [](const Arguments&) {
    auto& driver = *load_cuda_plugin(emulated_plugin()).value;
    driver.limit_multiprocessors(2);
    const auto [nccl, why_not] = driver.nccl("auto");
    std::puts(nccl ? "one" : why_not.c_str());
    return 0;
});

/// Its description, and why it cannot give as much memory as it has, when some is in use.
const ChildCase small_device("say what the device has", [](const Arguments&) {
    auto& driver = *load_cuda_plugin(emulated_plugin()).value;
    std::puts(driver.description(0).c_str());
    driver.allocate(0, 8 << 20);
    try {
        driver.allocate(0, 48 << 20);
    } catch (const Error& error) {
        std::puts(error.what());
    }
    return 0;
});

std::string nccl_with(const std::vector<std::string>& arguments,
                      const Child::Environment& environment = {}) {
    return Child("say which NCCL", environment, arguments).line();
}

std::string reason_with(const Child::Environment& environment) {
    return Child("say why there is no driver", environment).line();
}

}  // namespace

TEST_CASE("a device of less than a GiB is described in MiB, and says what of them is free") {
    Child child("say what the device has", {{"EMULATED_CUDA_MEMORY_MIB", "48"}});
    CHECK(child.line() == "Emulated GPU, 48 MiB, compute capability 9.0");
    CHECK(child.line() ==
          "CUDA: cannot allocate 50331648 bytes of device memory, of which 41943040 are free: out "
          "of memory (cudaErrorMemoryAllocation)");
}

TEST_CASE("the plugin works on an emulated device as the host does") {
    const auto cuda = load_cuda_plugin(emulated_plugin());
    REQUIRE(cuda.reason.empty());
    CHECK(cuda.value->description(0) == "Emulated GPU, 1 GiB, compute capability 9.0");
    check_reductions_like_host(*cuda.value);
    check_special_values(*cuda.value);
    check_fills(*cuda.value);
    check_elements(*cuda.value);
    check_copies(*cuda.value);
    check_order(*cuda.value);
    check_words_wrap_around(*cuda.value);
}

TEST_CASE("no launch waits for another stream") {
    const auto end = end_of("launch beside a stream that is held");
    INFO(end.output);
    CHECK(end.exit_code == 0);
}

TEST_CASE("a kernel copies what are many, or scaled") {
    auto& driver = *load_cuda_plugin(emulated_plugin()).value;
    const auto stream = driver.make_stream(0);
    const auto memory = driver.allocate(0, 1 << 20);
    const auto part = [&](std::size_t i) { return memory.subspan(i << 12, 1 << 12); };
    const std::vector<Copy> copies = {{part(0), part(1), DType::f32},
                                      {part(2), part(3), DType::f32}};
    const auto kernels_for = [&](std::size_t count, double factor) {
        const auto before = emulated_cuda_calls_of("cudaLaunchKernel");
        driver.copy_all(*stream, std::span(copies).first(count), {.scale = factor});
        return emulated_cuda_calls_of("cudaLaunchKernel") - before;
    };
    CHECK(kernels_for(1, 1) == 0);
    CHECK(kernels_for(1, 2) == 1);
    CHECK(kernels_for(2, 1) == 1);
    wait_until_done(*stream);
    driver.release(0, memory);
}

TEST_CASE("no kernel's grid fills more multiprocessors than it may") {
    auto& driver = *load_cuda_plugin(emulated_plugin()).value;
    const auto stream = driver.make_stream(0);
    const auto memory = driver.allocate(0, 2 << 20), scratch = driver.allocate(0, 1 << 20);
    const auto pinned = driver.allocate_pinned(0, sizeof(double));
    const auto half = memory.first(1 << 20), other = memory.last(1 << 20);
    const auto two_bytes = pinned.first(2);
    two_bytes[0] = std::byte{1};
    two_bytes[1] = std::byte{2};
    std::vector<Copy> copies;
    for (std::size_t first = 0; first < half.size(); first += 4096)
        copies.push_back({half.subspan(first, 4096), other.subspan(first, 4096), DType::f32});
    const std::span<const std::byte> inputs[] = {half, other};
    for (const int most : {1, 3, 100, 0}) {
        driver.limit_multiprocessors(most);
        const int all = emulated_cuda::device_facts::multiprocessors;
        const auto expected =
            static_cast<unsigned>((most == 0 ? all : std::min(most, all)) *
                                  emulated_cuda::device_facts::blocks_per_multiprocessor);
        const auto check = [&](const char* what) {
            INFO(what << " with a limit of " << most);
            CHECK(emulated_cuda_largest_grid() == expected);
        };
        emulated_cuda_largest_grid();
        driver.fill(*stream, half, two_bytes);
        check("fill");
        driver.reduce(*stream, {ReduceOp::sum, DType::f32}, {&half, 1}, inputs);
        check("reduce");
        driver.sum_of_squares(*stream, DType::f32, half, scratch,
                              *reinterpret_cast<double*>(pinned.data()));
        check("sum_of_squares");
        driver.copy_all(*stream, copies, {});
        check("copies");
        driver.copy_all(*stream, copies, {.scale = 2});
        check("scaled copies");
    }
    wait_until_done(*stream);
    driver.release(0, memory);
    driver.release(0, scratch);
    driver.release_pinned(0, pinned);
}

TEST_CASE("the plugin says why there is no device") {
    CHECK(reason_with({{"EMULATED_CUDA_DRIVER", "0"}}) == "no NVIDIA driver");
    CHECK(reason_with({{"EMULATED_CUDA_DRIVER", "12000"}})
              .starts_with("NVIDIA driver too old: it supports CUDA 12.0, this build needs "));
    CHECK(reason_with({{"EMULATED_CUDA_DEVICES", "0"}}) == "no CUDA device");
    CHECK(reason_with({{"CUDA_VISIBLE_DEVICES", ""}}) == "no CUDA device");
    CHECK(reason_with({{"EMULATED_CUDA_FAIL", "cudaGetDeviceCount:1:3"}})
              .starts_with("CUDA failed: initialization error"));
    CHECK(reason_with({}).empty());
}

TEST_CASE("the plugin says which NCCL it has, or why it has none") {
    const auto folder = emulated_plugin().parent_path();
    const auto file = (folder / "libnccl.so.2").string();
    CHECK(nccl_with({"off"}) == "GUOZHUANG_NCCL is off");
    if (!GUOZHUANG_WITH_NCCL) {
        CHECK(nccl_with({"auto"}) == "built without NCCL");
        return;
    }
    const auto found = nccl_with({"auto"});
    CHECK_THAT(found, StartsWith("2.") && EndsWith(" (" + file + ")"));
    CHECK(nccl_with({file}) == found);
    CHECK_THAT(nccl_with({"/nowhere/libnccl.so.2"}),
               StartsWith("NCCL not loaded: /nowhere/libnccl.so.2: cannot open"));
    CHECK_THAT(nccl_with({(folder / "libemulated_cudart.so").string()}),
               StartsWith("NCCL not loaded: ") && EndsWith("ncclGetVersion"));
    CHECK(nccl_with({"auto"}, {{"EMULATED_NCCL_VERSION", "21200"}}) ==
          "NCCL too old: it is 2.12.0, this build needs 2.14.0");
    const auto limited = [](const char* version) {
        return Child("say which NCCL can be limited", {{"EMULATED_NCCL_VERSION", version}}).line();
    };
    CHECK(limited("21605") == "NCCL too old: it is 2.16.5, GUOZHUANG_DEVICE_SMS needs 2.17.0");
    CHECK(limited("21700") == "one");
    // An NCCL that the program has loaded is used whatever file GUOZHUANG_NCCL names.
    CHECK(nccl_with({"/nowhere/libnccl.so.2", file}) == found);
    CHECK(nccl_with({"off", file}) == "GUOZHUANG_NCCL is off");
}

TEST_CASE("the plugin leaves a thread that has no context without one") {
    CHECK(end_of("use the plugin without a context").exit_code == 0);
}
