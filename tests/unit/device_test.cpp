#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <guozhuang/error.hpp>
#include <thread>
#include <unistd.h>
#include <vector>

#include "device/find_nccl.hpp"
#include "device/plugin.hpp"
#include "support/fakes/fake_driver.hpp"
#include "support/oracles/device_copies.hpp"
#include "support/oracles/device_streams.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/report.hpp"

using namespace guozhuang;
using namespace guozhuang::device;
using namespace guozhuang::test;

namespace {

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
    return std::as_writable_bytes(std::span(values));
}

/// Blocks until everything enqueued on the stream so far is done.
void drain(Stream& stream) {
    const auto end = stream.record();
    while (!end->done()) std::this_thread::yield();
}

bool is_documented(const std::string& reason) {
    return std::any_of(std::begin(cuda_reasons), std::end(cuda_reasons),
                       [&](std::string_view start) { return reason.starts_with(start); });
}

/// Where the build puts the plugin; this program itself lies beside that directory, in bin.
std::filesystem::path built_plugin() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" /
           "libguozhuang_cuda.so";
}

ErrorCode code_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code();
    }
    return ErrorCode::internal;
}

}  // namespace

TEST_CASE("the end of a fake stream loses no work") {
    int ran = 0;
    {
        const auto stream = make_fake_driver()->make_stream(0);
        for (int i = 0; i < 1000; ++i) launch(*stream, [&] { ++ran; });
    }
    CHECK(ran == 1000);
}

TEST_CASE("the null handle is a fake device's default stream, one and the same") {
    const auto driver = make_fake_driver(2);
    const StreamRef zero{.device = {DeviceKind::cuda, 0}}, one{.device = {DeviceKind::cuda, 1}};
    CHECK(driver->wrap(zero)->ref().native == driver->wrap(zero)->ref().native);
    CHECK(driver->wrap(zero)->ref().native != driver->wrap(one)->ref().native);
    CHECK(driver->wrap(one)->ref().device == one.device);
}

TEST_CASE("the fake refuses what a device would refuse") {
    const auto driver = make_fake_driver();
    const auto stream = driver->make_stream(0);
    std::vector<float> four(4), five(5);
    const auto copy_all = [&](std::span<std::byte> to, DType dtype, const Finish& finish) {
        return [=, &five] {
            const Copy copy{to, bytes_of(five).first(16), dtype};
            driver->copy_all(*stream, {&copy, 1}, finish);
        };
    };
    const auto reduce = [&](const Reduction& reduction, std::size_t offset, std::size_t bytes,
                            std::size_t inputs = 1) {
        return [=, &four, &five] {
            const auto output = bytes_of(four).subspan(offset, bytes);
            const std::vector<std::span<const std::byte>> all(inputs, bytes_of(five).first(bytes));
            driver->reduce(*stream, reduction, {&output, 1}, all);
        };
    };
    const auto fill = [&](std::size_t offset, std::size_t bytes, std::size_t element) {
        return [=, &four, &five] {
            driver->fill(*stream, bytes_of(five).subspan(offset, bytes),
                         bytes_of(four).first(element));
        };
    };
    const std::function<void()> refused[] = {
        [&] { driver->make_stream(1); },
        [&] { driver->allocate(-1, 8); },
        [&] {
            driver->wrap({.device = {DeviceKind::host, 0}});
        },
        [&] { driver->copy(*stream, bytes_of(five), bytes_of(four)); },
        [&] { driver->require_healthy(1); },
        copy_all(bytes_of(four).first(12), DType::f32, {}),
        copy_all(bytes_of(four), DType::i32, {.scale = 2}),
        copy_all(bytes_of(four), DType::i64, {.scale = 2}),
        copy_all(bytes_of(four), DType::f32, {0}),
        copy_all(bytes_of(four), DType::f32, {-1}),
        copy_all(bytes_of(five).subspan(2, 16), DType::f32, {.scale = 2}),
        reduce({ReduceOp::sum, DType::boolean}, 0, 8),
        reduce({ReduceOp::sum, DType::f64}, 0, 12),
        reduce({ReduceOp::sum, DType::f32}, 2, 8),
        reduce({ReduceOp::adasum, DType::f32}, 0, 8),
        reduce({ReduceOp::average, DType::f32, 0}, 0, 8),
        reduce({ReduceOp::sum, DType::i32, 1, 0.5}, 0, 8),
        reduce({ReduceOp::sum, DType::f32}, 0, 8, 0),
        reduce({ReduceOp::sum, DType::f32}, 0, 8, 17),
        fill(0, 12, 3),
        fill(0, 12, 8),
        fill(2, 8, 4)};
    for (const auto& call : refused) {
        INFO("call " << &call - refused);
        CHECK(code_of(call) == ErrorCode::invalid_argument);
    }
    CHECK(driver->nccl("auto").reason.starts_with("NCCL cannot reach such a device"));
    CHECK(driver->allocate(0, 0).empty());
    CHECK(driver->allocate_pinned(0, 0).empty());
}

TEST_CASE("CUDA is there, or a documented reason says why not") {
    const auto& cuda = cuda_driver();
    CHECK((cuda.value != nullptr) == cuda.reason.empty());
    CHECK((cuda.value != nullptr || is_documented(cuda.reason)));
    CHECK(&cuda == &cuda_driver());
    CHECK(built_with_cuda() != cuda.reason.starts_with("built without CUDA"));
}

TEST_CASE("a plugin that is missing, or none of ours, is refused with its path") {
    CHECK(load_cuda_plugin("/nonexistent/libguozhuang_cuda.so").reason ==
          "plugin not found: /nonexistent/libguozhuang_cuda.so");
    // A path that is not absolute is never searched for.
    CHECK(load_cuda_plugin("libguozhuang_cuda.so").reason ==
          "plugin not found: libguozhuang_cuda.so");
    CHECK(load_cuda_plugin("/proc/self/exe").reason.starts_with("plugin not loaded: "));
}

TEST_CASE("the CUDA plugin of this build fits it") {
    if (!std::filesystem::exists(built_plugin())) GUOZHUANG_SKIP("no CUDA plugin in this build");
    const auto cuda = load_cuda_plugin(built_plugin());
    INFO(cuda.reason);
    CHECK((cuda.value != nullptr || is_documented(cuda.reason)));
    CHECK_FALSE(cuda.reason.starts_with("build mismatch"));
    CHECK_FALSE(cuda.reason.starts_with("plugin not"));
}

TEST_CASE("the fake fills memory with elements of all sizes, and calls all memory its own") {
    const auto driver = make_fake_driver();
    check_fills(*driver);
    CHECK(driver->location_of(driver.get()).kind == MemoryKind::managed);
}

TEST_CASE("copies of the fake that are enqueued together are those one by one") {
    check_copies(*make_fake_driver());
}

TEST_CASE("memory of the fake holds NaNs until it is written") {
    const auto driver = make_fake_driver();
    const auto of_device = driver->allocate(0, 64), pinned = driver->allocate_pinned(0, 64);
    for (const auto memory : {of_device, pinned}) {
        std::array<float, 16> numbers{};
        std::memcpy(numbers.data(), memory.data(), memory.size());
        CHECK(std::ranges::all_of(numbers, [](float number) { return std::isnan(number); }));
    }
    driver->release(0, of_device);
    driver->release_pinned(0, pinned);
}

TEST_CASE("streams of the fake wait for words and events") {
    const auto driver = make_fake_driver();
    check_order(*driver);
    check_words_wrap_around(*driver);
}

TEST_CASE("min and max of the fake propagate NaN and tell the zeros apart") {
    check_special_values(*make_fake_driver());
}

TEST_CASE("a device of CUDA reduces and fills as the host does") {
    const auto cuda = load_cuda_plugin(built_plugin());
    if (!cuda.value) GUOZHUANG_SKIP(cuda.reason);
    INFO(cuda.value->description(0));
    check_reductions_like_host(*cuda.value);
    check_special_values(*cuda.value);
    check_fills(*cuda.value);
    check_copies(*cuda.value);
}

TEST_CASE("streams of CUDA order work as those of the fake do") {
    const auto cuda = load_cuda_plugin(built_plugin());
    if (!cuda.value) GUOZHUANG_SKIP(cuda.reason);
    check_order(*cuda.value);
    check_words_wrap_around(*cuda.value);
    const auto stream = cuda.value->make_stream(0);
    CHECK(code_of([&] { stream->wait(make_fake_driver()->make_stream(0)->record()); }) ==
          ErrorCode::invalid_argument);
    CHECK(cuda.value->wrap(stream->ref()) == cuda.value->wrap(stream->ref()));
    drain(*cuda.value->wrap({.device = {DeviceKind::cuda, 0}}));  // the default stream
}

TEST_CASE("CUDA knows its memory from the host's") {
    const auto cuda = load_cuda_plugin(built_plugin());
    if (!cuda.value) GUOZHUANG_SKIP(cuda.reason);
    const std::vector<std::byte> host(100);
    const auto device = cuda.value->allocate(0, 100), pinned = cuda.value->allocate_pinned(0, 100);
    CHECK(cuda.value->location_of(host.data()).kind == MemoryKind::unknown);
    CHECK(cuda.value->location_of(&pinned[50]).kind == MemoryKind::host);
    CHECK(cuda.value->location_of(&device[50]).kind == MemoryKind::device);
    CHECK(cuda.value->location_of(&device[50]).device == 0);
    cuda.value->release(0, device);
    cuda.value->release_pinned(0, pinned);
}

TEST_CASE("files of packages are found beside the Pythons of a search path") {
    namespace fs = std::filesystem;
    const auto top = fs::temp_directory_path() / text_of("guozhuang_packages_", ::getpid());
    const auto packages = top / "env/lib/python3.12/site-packages/nvidia/nccl/lib";
    fs::create_directories(packages);
    fs::create_directories(top / "env/bin");
    fs::create_directories(top / "empty/bin");
    std::ofstream(packages / "libnccl.so.2") << "";
    const auto found = [&](const std::string& programs) {
        return files_in_packages("nvidia/nccl/lib/libnccl.so.2", programs);
    };
    const auto both = (top / "empty/bin").string() + "::" + (top / "env/bin").string();
    CHECK(found(both).empty());  // without a Python
    std::ofstream(top / "env/bin/python3") << "";
    CHECK(found(both) == std::vector<std::string>{packages / "libnccl.so.2"});
    CHECK(found("").empty());
    fs::remove_all(top);
}
