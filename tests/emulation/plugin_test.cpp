// The plugin on the emulated runtime: its own code, kernels included.

#include <cstdio>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <filesystem>

#include "device/plugin.hpp"
#include "emulation/child.hpp"
#include "support/oracles/device_elements.hpp"
#include "support/oracles/device_streams.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::device;
using namespace guozhuang::test;

namespace {

std::filesystem::path emulated_plugin() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
           "emulated/lib/libguozhuang_cuda.so";
}

int say_why_there_is_no_driver(const std::vector<std::string>&) {
    std::puts(load_cuda_plugin(emulated_plugin()).reason.c_str());
    return 0;
}
const ChildCase reason("say why there is no driver", say_why_there_is_no_driver);

int use_plugin_without_context(const std::vector<std::string>&) {
    const auto cuda = load_cuda_plugin(emulated_plugin());
    const auto memory = cuda.driver->allocate(0, 64);
    wait_until_done(*cuda.driver->make_stream(0));
    cuda.driver->release(0, memory);
    CUcontext context = nullptr;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context) return 1;
    cudaSetDevice(0);
    return cuCtxGetCurrent(&context) == CUDA_SUCCESS && context ? 0 : 2;
}
const ChildCase without_context("use the plugin without a context", use_plugin_without_context);

std::string reason_with(const Child::Environment& environment) {
    return Child("say why there is no driver", environment).line();
}

}  // namespace

TEST_CASE("the plugin works on an emulated device as the host does") {
    const auto cuda = load_cuda_plugin(emulated_plugin());
    REQUIRE(cuda.reason.empty());
    CHECK(cuda.driver->description(0) == "Emulated GPU, 1 GiB, compute capability 9.0");
    check_reductions_like_host(*cuda.driver);
    check_special_values(*cuda.driver);
    check_fills(*cuda.driver);
    check_elements(*cuda.driver);
    check_order(*cuda.driver);
    check_words_wrap_around(*cuda.driver);
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

TEST_CASE("the plugin leaves a thread that has no context without one") {
    CHECK(end_of("use the plugin without a context").exit_code == 0);
}
