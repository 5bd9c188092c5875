// Allreduces among ranks that are threads of one process, and share a GPU: gpu_threads RANKS BYTES
// prints one JSON object with their times and the GPU's copy bandwidth, all in one run.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <guozhuang/guozhuang.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "emulation/cuda_objects.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int device = 0, times = 11;

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> samples) {
    std::ranges::sort(samples);
    return samples[samples.size() / 2];
}

/// Of the slowest rank, each time.
double median_of_slowest(std::vector<double> samples) {
    allreduce(samples, {.op = ReduceOp::max});
    return median(std::move(samples));
}

/// One rank's tensor, and the stream that works on it.
class RankTensor {
public:
    RankTensor(std::size_t bytes, float value)
        : count_(bytes / sizeof(float)),
          values_(device_memory<float>(count_)),
          view_(values_, DType::f32, {static_cast<std::int64_t>(count_)},
                {DeviceKind::cuda, device}) {
        const std::vector<float> all(count_, value);
        expect(cudaMemcpy(values_, all.data(), bytes, cudaMemcpyHostToDevice), "no copy");
    }
    ~RankTensor() { cudaFree(values_); }
    RankTensor(const RankTensor&) = delete;
    RankTensor& operator=(const RankTensor&) = delete;

    Handle start(ReduceOp op) const {
        return allreduce_async(view_, {.name = "of threads", .op = op, .stream = stream()});
    }
    StreamRef stream() const { return {view_.device, stream_.native}; }
    void synchronize() const { expect(cudaStreamSynchronize(stream_.native), "it has failed"); }
    std::int64_t count_other_than(float value) const {
        std::vector<float> all(count_);
        expect(cudaMemcpy(all.data(), values_, view_.bytes(), cudaMemcpyDeviceToHost), "no copy");
        return std::ssize(all) - std::ranges::count(all, value);
    }

private:
    std::size_t count_;
    float* values_;
    TensorView view_;
    const TestStream stream_;
};

/// Sums the ranks' numbers, and then averages the sums, which changes nothing, again and again.
Json measure(Session& session, std::size_t bytes) {
    const RankTensor tensor(bytes, static_cast<float>(session.rank() + 1));
    tensor.start(ReduceOp::sum).wait();
    const auto sum = static_cast<float>(session.size() * (session.size() + 1)) / 2;
    std::int64_t wrong = tensor.count_other_than(sum);
    std::vector<double> enqueued, done;
    for (int i = 0; i < times; ++i) {
        barrier();
        const auto start = Clock::now();
        tensor.start(ReduceOp::average).wait(tensor.stream());
        enqueued.push_back(microseconds_since(start));
        tensor.synchronize();
        done.push_back(microseconds_since(start));
    }
    wrong += tensor.count_other_than(sum);
    allreduce(wrong);
    return {{"bytes", bytes},
            {"wrong", wrong},
            {"enqueue_us", median_of_slowest(enqueued)},
            {"us", median_of_slowest(done)}};
}

/// Bytes read and written, in GB/s.
double copy_bandwidth() {
    constexpr std::size_t bytes = std::size_t{64} << 20;
    auto *const from = device_memory<std::byte>(bytes), *const to = device_memory<std::byte>(bytes);
    const TestStream stream;
    std::vector<double> samples;
    for (int i = 0; i < times; ++i) {
        const auto start = Clock::now();
        expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.native),
               "no copy");
        expect(cudaStreamSynchronize(stream.native), "the copy has failed");
        samples.push_back(microseconds_since(start));
    }
    cudaFree(from);
    cudaFree(to);
    return 2 * static_cast<double>(bytes) / median(samples) / 1e3;
}

void run_threads(int ranks, std::size_t bytes) {
    expect(cudaSetDevice(device), "no device");
    Json found = {{"ranks", ranks}, {"copy_GBps", copy_bandwidth()}};
    run_ranks(ranks, [&](Session& session) {
        for (const auto& [name, size] : {std::pair{"small", bytes / 1024}, {"large", bytes}}) {
            const auto measured = measure(session, size);
            if (session.rank() == 0) found[name] = measured;
        }
    });
    std::puts(found.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) try {
    const std::span arguments(argv, static_cast<std::size_t>(argc));
    if (argc != 3) throw std::invalid_argument("usage: gpu_threads RANKS BYTES");
    run_threads(std::atoi(arguments[1]), std::strtoull(arguments[2], nullptr, 10));
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_threads: %s\n", error.what());
    return 1;
}
