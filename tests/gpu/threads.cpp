// Allreduces among ranks that are threads of one process, and share a GPU: gpu_threads RANKS BYTES
// prints one JSON object with their times and the GPU's copy bandwidth, all in one run.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <guozhuang/guozhuang.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "gpu/rank_tensor.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

using Json = nlohmann::ordered_json;
constexpr int device = 0, times = 11;

Json measure(std::size_t bytes) {
    const RankTensor tensor(device, bytes);
    auto wrong = tensor.wrong();
    std::vector<double> enqueued, done;
    for (int i = 0; i < times; ++i) {
        barrier();
        const auto start = Clock::now();
        tensor.start(ReduceOp::average).wait(tensor.stream());
        enqueued.push_back(microseconds_since(start));
        tensor.synchronize();
        done.push_back(microseconds_since(start));
    }
    wrong += tensor.wrong();
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
            const auto measured = measure(size);
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
