// gz-perf-oneccl: gz-perf with one more baseline, Intel's oneCCL.

#include <array>
#include <mpi.h>
#include <oneapi/ccl.hpp>
#include <stdexcept>
#include <vector>

#include "program.hpp"

namespace guozhuang::perf {
namespace {

ccl::communicator make_communicator(const MpiJob& job) {
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address{};
    job.all_or_none([&] {
        if (!job.first()) return;
        store = ccl::create_main_kvs();
        address = store->get_address();
    });
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (!job.first()) store = ccl::create_kvs(address);
    return ccl::create_communicator(job.size(), job.rank(), store);
}

ccl::event start_sum(const ccl::communicator& ranks, std::span<std::byte> floats) {
    return ccl::allreduce(floats.data(), floats.data(), floats.size() / sizeof(float),
                          ccl::datatype::float32, ccl::reduction::sum, ranks);
}

class OneCclSeries final : public Series {
public:
    OneCclSeries(const ccl::communicator& ranks, std::span<std::byte> buffer)
        : ranks_(ranks), buffer_(buffer) {}
    std::string_view name() const noexcept override { return "oneccl"; }
    void run() override { start_sum(ranks_, buffer_).wait(); }
    std::span<const std::byte> result() const override { return buffer_; }

private:
    const ccl::communicator& ranks_;
    std::span<std::byte> buffer_;
};

class OneCclBaseline final : public Baseline {
public:
    explicit OneCclBaseline(const MpiJob& job) : ranks_(make_communicator(job)) {}

    std::string_view name() const noexcept override { return "oneccl"; }

    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte>) override {
        if (test.collective != Collective::allreduce || test.dtype != DType::f32 ||
            test.op != ReduceOp::sum)
            throw std::invalid_argument(
                "--peer oneccl: only allreduce is compared, in sums of f32");
        return std::make_unique<OneCclSeries>(ranks_, input.first(test.bytes()));
    }

    void sum(std::span<const std::span<std::byte>> buffers) override {
        std::vector<ccl::event> under_way;
        for (const auto buffer : buffers) under_way.push_back(start_sum(ranks_, buffer));
        for (auto& event : under_way) event.wait();
    }

private:
    ccl::communicator ranks_;
};

std::unique_ptr<Baseline> make_oneccl_baseline(const MpiJob& job, const TensorDevice* device) {
    if (device != nullptr) throw Refusal("--peer oneccl: only tensors on the host are compared");
    return std::make_unique<OneCclBaseline>(job);
}

}  // namespace
}  // namespace guozhuang::perf

int main(int argc, char** argv) {
    using namespace guozhuang::perf;
    static constexpr std::array baselines{BaselineKind{"mpi", make_mpi_baseline},
                                          BaselineKind{"oneccl", make_oneccl_baseline}};
    return run_program("gz-perf-oneccl", baselines, argc, argv);
}
