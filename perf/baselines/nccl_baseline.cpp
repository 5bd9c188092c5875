#include <mpi.h>

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <guozhuang/error.hpp>
#include <guozhuang/info.hpp>
#include <thread>

#include "baselines/baseline.hpp"
#include "baselines/mpi_types.hpp"
#include "device/nccl.hpp"
#include "statistics.hpp"

namespace guozhuang::perf {
namespace {

constexpr double most_seconds_to_connect = 30;

/// Lets all ranks do what may not be possible here. If one cannot, none goes on.
void try_on_all(const MpiJob& job, const std::function<void()>& step) try {
    job.all_or_none([&] {
        try {
            step();
        } catch (const Error& error) {
            throw std::runtime_error(fmt::format("rank {}: {}", job.rank(), error.what()));
        }
    });
} catch (const Refusal& reason) {
    throw Unavailable(reason.what());
}

/// The value of GUOZHUANG_NCCL. A process has one NCCL, so the baseline uses the library's.
std::string wanted_nccl() {
    const auto items = info();
    return std::ranges::find(items, "GUOZHUANG_NCCL", &InfoItem::key)->value;
}

device::Nccl& nccl_of(const TensorDevice& device) {
    const auto [nccl, reason] = device.driver().nccl(wanted_nccl());
    if (nccl == nullptr) throw Error(ErrorCode::unavailable, reason);
    return *nccl;
}

/// A communicator of NCCL's among all ranks, beside those of the library.
class NcclRanks {
public:
    using Calls = std::function<void(device::NcclCommunicator&, device::Stream&)>;

    NcclRanks(const MpiJob& job, const TensorDevice& device) : device_(device) {
        device::Nccl* nccl = nullptr;
        device::NcclId id{};
        try_on_all(job, [&] { nccl = &nccl_of(device); });
        try_on_all(job, [&] {
            if (job.first()) id = nccl->make_id();
        });
        check_mpi(MPI_Bcast(id.data(), static_cast<int>(id.size()), MPI_BYTE, 0, MPI_COMM_WORLD));
        try_on_all(job, [&] {
            communicator_ = nccl->connect(id, job.rank(), job.size(), device.index());
            wait_until_ready();
        });
    }
    ~NcclRanks() {
        if (std::uncaught_exceptions() > 0 || communicator_ == nullptr) return;  // others may wait
        try {
            communicator_->finalize();
            wait_until_ready();
        } catch (const Error&) {
            // The communicator is then aborted.
        }
    }
    NcclRanks(const NcclRanks&) = delete;
    NcclRanks& operator=(const NcclRanks&) = delete;

    /// One group of calls, until the device is done.
    void run(const Calls& calls) {
        communicator_->group([&] { calls(*communicator_, device_.work()); });
        while (!communicator_->is_ready()) std::this_thread::yield();
        device_.finish();
    }

private:
    void wait_until_ready() const {
        const auto start = Clock::now();
        while (!communicator_->is_ready()) {
            if (seconds_since(start) > most_seconds_to_connect)
                throw Error(ErrorCode::timeout, fmt::format("NCCL has not connected within {:g} s",
                                                            most_seconds_to_connect));
            std::this_thread::yield();
        }
    }

    const TensorDevice& device_;
    std::unique_ptr<device::NcclCommunicator> communicator_;
};

class NcclSeries final : public Series {
public:
    NcclSeries(NcclRanks& ranks, device::Reduction reduction, std::span<std::byte> buffer)
        : ranks_(ranks), reduction_(reduction), buffer_(buffer) {}
    std::string_view name() const noexcept override { return "nccl"; }
    void run() override {
        ranks_.run([this](device::NcclCommunicator& nccl, device::Stream& stream) {
            nccl.allreduce(stream, reduction_, buffer_);
        });
    }
    std::span<const std::byte> result() const override { return buffer_; }

private:
    NcclRanks& ranks_;
    device::Reduction reduction_;
    std::span<std::byte> buffer_;
};

class NcclBaseline final : public Baseline {
public:
    NcclBaseline(const MpiJob& job, const TensorDevice& device) : ranks_(job, device) {}

    std::string_view name() const noexcept override { return "nccl"; }

    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte>) override {
        const device::Reduction reduction{test.op, test.dtype};
        if (test.collective != Collective::allreduce || test.op == ReduceOp::average ||
            !device::is_in_nccl(test.op, test.dtype))
            throw std::invalid_argument(
                "--peer nccl: only allreduce is compared, in what NCCL reduces as the host does");
        return std::make_unique<NcclSeries>(ranks_, reduction, input.first(test.bytes()));
    }

    void sum(std::span<const std::span<std::byte>> buffers) override {
        ranks_.run([&](device::NcclCommunicator& nccl, device::Stream& stream) {
            for (const auto buffer : buffers)
                nccl.allreduce(stream, {ReduceOp::sum, DType::f32}, buffer);
        });
    }

private:
    NcclRanks ranks_;
};

}  // namespace

std::unique_ptr<Baseline> make_nccl_baseline(const MpiJob& job, const TensorDevice* device) {
    if (device == nullptr) throw Refusal("--peer nccl: only tensors on a device: give --device");
    return std::make_unique<NcclBaseline>(job, *device);
}

}  // namespace guozhuang::perf
