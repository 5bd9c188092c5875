// The plugin's kernels on a device, beside the host's bits and beside sums in float64.

#include <cmath>
#include <cstring>
#include <filesystem>

#include "device/host/float16.hpp"
#include "device/plugin.hpp"
#include "support/oracles/device_elements.hpp"
#include "support/oracles/device_streams.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::device;
using namespace guozhuang::test;

namespace {

Driver& plugin_driver() {
    const auto bin = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const auto [driver, reason] =
        load_cuda_plugin(bin.parent_path() / GPU_PLUGIN_DIRECTORY "/libguozhuang_cuda.so");
    if (driver == nullptr) throw std::runtime_error(reason);
    return *driver;
}

template <class T>
double value_at(std::span<const std::byte> bytes, std::size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return static_cast<double>(value);
}

/// The largest distance of a sum from that in float64, in units of what `inputs` roundings of
/// partial sums allow.
template <class T>
double distance_from_float64(Driver& driver, DType dtype, std::size_t inputs) {
    constexpr std::size_t count = 100'003;
    const auto stream = driver.make_stream(0);
    std::vector<std::vector<std::byte>> contents(inputs, std::vector<std::byte>(count * sizeof(T)));
    std::deque<Mirrored> memories;
    std::vector<std::span<const std::byte>> sources;
    for (std::size_t k = 0; k < inputs; ++k) {
        for (std::size_t i = 0; i < count; ++i) {
            const T value = static_cast<T>(std::sin(static_cast<double>(i * inputs + k)));
            std::memcpy(contents[k].data() + i * sizeof(T), &value, sizeof(T));
        }
        memories.emplace_back(driver, *stream, contents[k]);
        sources.push_back(memories.back().device());
    }
    const Mirrored output(driver, *stream, contents[0]);
    const std::span<std::byte> outputs[] = {output.device()};
    driver.reduce(*stream, {ReduceOp::sum, dtype}, outputs, sources);
    const auto sums = output.read(*stream);
    double worst = 0;
    for (std::size_t i = 0; i < count; ++i) {
        double sum = 0, magnitude = 0;
        for (const auto& each : contents) {
            sum += value_at<T>(each, i);
            magnitude += std::abs(value_at<T>(each, i));
        }
        const double allowed = static_cast<double>(inputs) * std::numeric_limits<T>::epsilon();
        worst = std::max(worst, std::abs(value_at<T>(sums, i) - sum) / (allowed * magnitude));
    }
    return worst;
}

}  // namespace

TEST_CASE("kernels give the bits of the host") {
    auto& driver = plugin_driver();
    check_reductions_like_host(driver);
    check_special_values(driver);
    check_fills(driver);
    check_elements(driver);
}

TEST_CASE("sums are those in float64, up to rounding") {
    auto& driver = plugin_driver();
    for (const std::size_t inputs : {1, 2, 3, 8}) {
        CHECK(distance_from_float64<float>(driver, DType::f32, inputs) <= 1);
        CHECK(distance_from_float64<double>(driver, DType::f64, inputs) <= 1);
    }
}

TEST_CASE("streams keep their order, and words wrap around") {
    auto& driver = plugin_driver();
    check_order(driver);
    check_words_wrap_around(driver);
}
