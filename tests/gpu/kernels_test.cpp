// The plugin's kernels on a device, beside the host's bits and beside sums in float64.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "device/host/float16.hpp"
#include "device/plugin.hpp"
#include "support/oracles/device_copies.hpp"
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

/// Tensors apart from each other, to be packed.
class ManyTensors {
public:
    ManyTensors(Driver& driver, std::size_t count, std::size_t bytes)
        : driver_(driver),
          packed_(driver.allocate(0, count * bytes)),
          tensors_(driver.allocate(0, count * (bytes + distance))) {
        const float two = 2;
        driver.fill(*stream_, tensors_, std::as_bytes(std::span(&two, 1)));
        for (std::size_t i = 0; i < count; ++i) {
            const auto packed = packed_.subspan(i * bytes, bytes),
                       tensor = tensors_.subspan(i * (bytes + distance), bytes);
            copies_.push_back({packed, tensor, DType::f32});
            back_.push_back({tensor, packed, DType::f32});
        }
    }
    ~ManyTensors() {
        driver_.release(0, packed_);
        driver_.release(0, tensors_);
    }
    ManyTensors(const ManyTensors&) = delete;
    ManyTensors& operator=(const ManyTensors&) = delete;

    void pack_together(double factor) const {
        driver_.copy_all(*stream_, copies_, {.scale = factor});
    }
    void unpack_together(double factor) const {
        driver_.copy_all(*stream_, back_, {.scale = factor});
    }
    /// As many bytes as all of them, in a row.
    void copy_as_one() const { driver_.copy(*stream_, packed_, tensors_.first(packed_.size())); }
    void pack_one_by_one() const {
        for (const auto& each : copies_) driver_.copy(*stream_, each.to, each.from);
    }
    /// Mean time of a call, over several in a row, until the last one is done.
    template <class Pack>
    double microseconds(Pack&& pack) const {
        constexpr int turns = 20;
        pack();
        wait_until_done(*stream_);
        const auto start = std::chrono::steady_clock::now();
        for (int turn = 0; turn < turns; ++turn) pack();
        wait_until_done(*stream_);
        const std::chrono::duration<double, std::micro> taken =
            std::chrono::steady_clock::now() - start;
        return taken.count() / turns;
    }
    /// Bytes read plus bytes written.
    template <class Move>
    double gigabytes_per_second(Move&& move) const {
        return 2 * static_cast<double>(packed_.size()) / microseconds(move) / 1e3;
    }
    bool are_packed(double factor) const {
        std::vector<float> packed(packed_.size() / sizeof(float));
        driver_.copy(*stream_, std::as_writable_bytes(std::span(packed)), packed_);
        wait_until_done(*stream_);
        const auto expected = static_cast<float>(2 * factor);
        return std::ranges::count(packed, expected) == std::ssize(packed);
    }

private:
    static constexpr std::size_t distance = 256;
    Driver& driver_;
    const std::shared_ptr<Stream> stream_ = driver_.make_stream(0);
    const std::span<std::byte> packed_, tensors_;
    std::vector<Copy> copies_, back_;
};

}  // namespace

TEST_CASE("figures of packing") {
    auto& driver = plugin_driver();
    const ManyTensors large(driver, 1000, GPU_PACKED_BYTES / 1000 / 256 * 256);
    const auto print = [&](const char* name, const auto& move) {
        std::printf("%s %.6g\n", name, large.gigabytes_per_second(move));
    };
    print("copied_GBps", [&] { large.copy_as_one(); });
    print("packed_GBps", [&] { large.pack_together(1); });
    CHECK(large.are_packed(1));
    print("prescaled_GBps", [&] { large.pack_together(0.25); });
    CHECK(large.are_packed(0.25));
    print("unpacked_GBps", [&] { large.unpack_together(2); });
    large.pack_together(1);
    CHECK(large.are_packed(0.5));
    const ManyTensors small(driver, 160, 4096);
    std::printf("pack160_us %.6g\n", small.microseconds([&] { small.pack_together(1); }));
    std::printf("copy160_us %.6g\n", small.microseconds([&] { small.pack_one_by_one(); }));
}

TEST_CASE("kernels give the bits of the host") {
    auto& driver = plugin_driver();
    check_reductions_like_host(driver);
    check_special_values(driver);
    check_fills(driver);
    check_elements(driver);
    check_copies(driver);
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
