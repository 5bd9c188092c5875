#pragma once

#include <memory>
#include <vector>

#include "device/cuda/cuda_sharing.hpp"
#include "device/cuda/cuda_stream.hpp"
#include "device/device.hpp"

namespace guozhuang::device {

class CudaDriver final : public Driver {
public:
    /// Drives devices 0 .. device_count-1, at least one. Makes no context on any.
    explicit CudaDriver(int device_count);

    int device_count() const noexcept override { return static_cast<int>(devices_.size()); }
    std::string description(int device) const override;
    std::optional<std::size_t> free_memory(int device) const noexcept override;
    void require_healthy(int device) const override;
    void limit_multiprocessors(int most) noexcept override;

    std::span<std::byte> allocate(int device, std::size_t bytes) override;
    void release(int device, std::span<std::byte> memory) noexcept override;
    std::span<std::byte> allocate_pinned(int device, std::size_t bytes) override;
    void release_pinned(int device, std::span<std::byte> memory) noexcept override;
    MemoryLocation location_of(const void* address) const override;

    void copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) override;
    void copy_all(Stream& stream, std::span<const Copy> copies, const Finish& finish) override;
    void fill(Stream& stream, std::span<std::byte> memory,
              std::span<const std::byte> element) override;
    void reduce(Stream& stream, const Reduction& reduction,
                std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs) override;
    void sum_of_squares(Stream& stream, DType dtype, std::span<const std::byte> memory,
                        std::span<std::byte> scratch, double& into) override;
    void write(Stream& stream, Word& word, std::uint32_t value) override;
    void wait(Stream& stream, Word& word, std::uint32_t value) override;
    void write_then_wait(Stream& stream, std::span<const WordValue> writes,
                         std::span<const WordValue> waits) override;
    std::shared_ptr<const void> prepare_calls(int device) override;

    std::shared_ptr<Stream> make_stream(int device) override;
    std::shared_ptr<Stream> wrap(StreamRef stream) override;
    OrReason<Nccl*> nccl(const std::string& wanted) override;

    MemorySharing& sharing() noexcept override { return sharing_; }

private:
    CudaDevice& device_at(int index) const;
    void free_with(cudaError_t (*free)(void*), int device,
                   std::span<std::byte> memory) const noexcept;

    std::vector<std::unique_ptr<CudaDevice>> devices_;
    CudaSharing sharing_;
    WrappedStreams wrapped_;
};

}  // namespace guozhuang::device
