#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <guozhuang/guozhuang.hpp>
#include <utility>
#include <vector>

#include "emulation/cuda_objects.hpp"

namespace guozhuang::test {

using Clock = std::chrono::steady_clock;

inline double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

inline double median(std::vector<double> samples) {
    std::ranges::sort(samples);
    return samples[samples.size() / 2];
}

/// The median over the samples, each taken from its slowest rank. Collective.
inline double median_of_slowest(std::vector<double> samples) {
    allreduce(samples, {.op = ReduceOp::max});
    return median(std::move(samples));
}

/// One rank's tensor on the current device, and the stream that works on it. Ranks sum their
/// numbers, from 1, and may then average the sums, which changes nothing, again and again.
class RankTensor {
public:
    RankTensor(int device, std::size_t bytes)
        : count_(bytes / sizeof(float)),
          values_(device_memory<float>(count_)),
          view_(values_, DType::f32, {static_cast<std::int64_t>(count_)},
                {DeviceKind::cuda, device}) {
        const std::vector<float> all(count_, static_cast<float>(rank() + 1));
        expect(cudaMemcpy(values_, all.data(), view_.bytes(), cudaMemcpyHostToDevice), "no copy");
        start(ReduceOp::sum).wait();
    }
    ~RankTensor() { cudaFree(values_); }
    RankTensor(const RankTensor&) = delete;
    RankTensor& operator=(const RankTensor&) = delete;

    Handle start(ReduceOp op) const {
        return allreduce_async(view_, {.name = "of ranks", .op = op, .stream = stream()});
    }
    StreamRef stream() const { return {view_.device, stream_.native}; }
    void synchronize() const { expect(cudaStreamSynchronize(stream_.native), "it has failed"); }

    /// How many elements of all ranks are not the sum. Collective.
    std::int64_t wrong() const {
        std::vector<float> all(count_);
        expect(cudaMemcpy(all.data(), values_, view_.bytes(), cudaMemcpyDeviceToHost), "no copy");
        const auto sum = static_cast<float>(size() * (size() + 1)) / 2;
        std::int64_t wrong = std::ssize(all) - std::ranges::count(all, sum);
        allreduce(wrong);
        return wrong;
    }

private:
    std::size_t count_;
    float* values_;
    TensorView view_;
    const TestStream stream_;
};

}  // namespace guozhuang::test
