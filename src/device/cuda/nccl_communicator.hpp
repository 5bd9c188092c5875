#pragma once

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/nccl_functions.hpp"
#include "device/nccl.hpp"

namespace guozhuang::device {

/// Every call preserves the thread's current device.
class CudaNcclCommunicator final : public NcclCommunicator {
public:
    CudaNcclCommunicator(const NcclFunctions& nccl, const NcclId& id, int rank, int ranks,
                         CudaDevice& device);
    ~CudaNcclCommunicator() override;
    CudaNcclCommunicator(const CudaNcclCommunicator&) = delete;
    CudaNcclCommunicator& operator=(const CudaNcclCommunicator&) = delete;

    bool is_ready() override;
    void group(const std::function<void()>& calls) override;
    void allreduce(Stream& stream, const Reduction& reduction,
                   std::span<std::byte> memory) override;
    void broadcast(Stream& stream, std::span<std::byte> into, std::span<const std::byte> from,
                   int root) override;
    void all_gather(Stream& stream, std::span<std::byte> into,
                    std::span<const std::byte> from) override;
    void reduce_scatter(Stream& stream, const Reduction& reduction, std::span<std::byte> into,
                        std::span<const std::byte> from) override;
    void reduce(Stream& stream, const Reduction& reduction, std::span<std::byte> into,
                std::span<const std::byte> from, int root) override;
    void send(Stream& stream, std::span<const std::byte> from, int to) override;
    void receive(Stream& stream, std::span<std::byte> into, int from) override;
    void finalize() override;

private:
    void check(ncclResult_t result, const char* tried) const {
        check_nccl(nccl_, result, tried, communicator_);
    }

    const NcclFunctions& nccl_;
    CudaDevice& device_;
    ncclComm_t communicator_ = nullptr;
    bool is_ending_ = false, has_ended_ = false;  ///< on all ranks
};

}  // namespace guozhuang::device
