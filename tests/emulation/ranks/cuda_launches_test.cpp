// How many kernels and copies the library launches, and how large their grids are.

#include <algorithm>
#include <cstdlib>
#include <guozhuang/guozhuang.hpp>
#include <string>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/emulated_cuda/device_facts.hpp"
#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr std::size_t tensors = 100;

/// Apart from each other, so that none are copied as one.
class TinyTensors {
public:
    explicit TinyTensors(Trainer& trainer)
        : trainer_(trainer),
          memory_(trainer.put_elements(std::vector<float>(tensors * distance, 1))) {
        trainer.synchronize();
    }
    std::vector<TensorView> views() const {
        std::vector<TensorView> all;
        for (std::size_t i = 0; i < tensors; ++i)
            all.emplace_back(memory_.get() + i * distance, DType::f32,
                             Shape{static_cast<std::int64_t>(1 + i % 40)},
                             trainer_.stream().device);
        return all;
    }
    /// Whether all tensors have this value, and the memory between them is as it was.
    bool are_all(float value) const {
        const auto found = trainer_.elements(memory_, tensors * distance);
        for (std::size_t i = 0; i < found.size(); ++i)
            if (found[i] != (i % distance < 1 + i / distance % 40 ? value : 1)) return false;
        return true;
    }

private:
    static constexpr std::size_t distance = 64;
    Trainer& trainer_;
    const std::shared_ptr<float> memory_;
};

std::uint64_t launches_and_copies() {
    return emulated_cuda_calls_of("cudaLaunchKernel") + emulated_cuda_calls_of("cudaMemcpyAsync");
}

/// One kernel packs and scales, one reduces and one unpacks; NCCL has one of its own. A rank alone
/// scales all tensors where they lie by one.
void tiny_tensors(Session& session, Report& report) {
    Trainer trainer;
    const TinyTensors gradients(trainer);
    const AllreduceOptions options{
        .op = ReduceOp::average, .prescale = 3, .stream = trainer.stream()};
    grouped_allreduce(gradients.views(), options);
    report.expect(gradients.are_all(3), "the averages");
    barrier();
    const auto before = launches_and_copies();
    grouped_allreduce(gradients.views(), options);
    const auto launched = launches_and_copies() - before;
    report.expect(gradients.are_all(9), "the averages of averages");
    const std::uint64_t most = session.size() == 1 ? 1 : 4;
    report.expect(launched <= most, text_of(launched, " kernels and copies for ", tensors));
}

/// Large tensors of two dtypes. Where NCCL moves them, a kernel for each dtype scales all of them
/// before, and another one divides and scales after. The other paths pack them.
void averages_of_large_tensors(Session&, Report& report) {
    Trainer trainer;
    constexpr std::int64_t each = 100'000, count = 12;
    const auto memory = trainer.put_elements(std::vector<float>(count * each, 1));
    const auto is_wide = [](std::int64_t i) { return i < 3 || i >= 9; };
    std::vector<TensorView> gradients;
    for (std::int64_t i = 0; i < count; ++i)
        gradients.emplace_back(memory.get() + i * each, is_wide(i) ? DType::f32 : DType::bf16,
                               Shape{is_wide(i) ? each : 2 * each}, trainer.stream().device);
    const AllreduceOptions options{
        .op = ReduceOp::average, .prescale = 4, .postscale = 0.5, .stream = trainer.stream()};
    grouped_allreduce(gradients, options);
    barrier();
    const auto before = emulated_cuda_calls_of("cudaLaunchKernel");
    grouped_allreduce(gradients, options);
    const auto launched = emulated_cuda_calls_of("cudaLaunchKernel") - before;
    const auto found = trainer.elements(memory, count * each);
    const auto at = [&](std::int64_t i) { return found.at(static_cast<std::size_t>(i)); };
    for (std::int64_t i = 0; i < count; ++i)
        if (is_wide(i))
            report.expect(at(i * each) == 4 && at((i + 1) * each - 1) == 4, "the averages");
    constexpr std::uint64_t most = 6;
    report.expect(launched <= most, text_of(launched, " kernels for ", count));
}

/// If the caller drives; a coordinator sets and restores its context by two more. Six scopes turn
/// capture's mode to and fro (12) and ask for the context (5). Two each ask for a stream's context
/// and for its capture, record, wait for an event, copy, and meet the other ranks, by one batch of
/// words each. The last three look up the tensor, reduce, and write the word of the end.
void calls_of_a_bundle(Session&, Report& report) {
    Trainer trainer;
    constexpr std::size_t count = 1000;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    const AllreduceOptions options{.name = "calls", .stream = trainer.stream()};
    const auto reduce = [&] {
        allreduce_async(trainer.view(values, count), options).wait(trainer.stream());
    };
    for (int i = 0; i < 3; ++i) reduce();  // what is pooled is there
    std::vector<std::uint64_t> calls;
    for (int i = 0; i < 20; ++i) {
        trainer.synchronize();
        barrier();
        const auto before = emulated_cuda_calls();
        reduce();
        calls.push_back(emulated_cuda_calls() - before);
    }
    const auto fewest = std::ranges::min(calls);
    report.expect(fewest <= 32, text_of(fewest, " CUDA calls for one allreduce"));
}

/// How many blocks fill GUOZHUANG_DEVICE_SMS multiprocessors, or all that the device has.
unsigned full_grid() {
    using namespace emulated_cuda::device_facts;
    constexpr int all = multiprocessors;
    const char* const limit = std::getenv("GUOZHUANG_DEVICE_SMS");
    const int used = limit == nullptr ? all : std::min(std::stoi(limit), all);
    return static_cast<unsigned>(used * blocks_per_multiprocessor);
}

void large_tensor(Session&, Report& report) {
    Trainer trainer;
    constexpr std::size_t count = 600'000;
    const auto values = trainer.put_elements(std::vector<float>(count, 1));
    trainer.synchronize();
    emulated_cuda_largest_grid();
    allreduce(trainer.view(values, count),
              {.op = ReduceOp::average, .prescale = 3, .stream = trainer.stream()});
    const auto grid = emulated_cuda_largest_grid();
    report.expect(grid == full_grid(), text_of(grid, " blocks instead of ", full_grid()));
}

}  // namespace

TEST_CASE("a bundle of a hundred tiny tensors needs a few kernels") {
    CHECK(problems_here(tiny_tensors) == "");
}

TEST_CASE("large tensors are averaged by a few kernels") {
    CHECK(problems_here(averages_of_large_tensors) == "");
}

TEST_CASE("the CUDA calls for a bundle are few, and do not grow with the ranks", "[calls]") {
    CHECK(problems_here(calls_of_a_bundle) == "");
}

TEST_CASE("a large tensor fills as many multiprocessors as it may") {
    CHECK(problems_here(large_tensor) == "");
}
