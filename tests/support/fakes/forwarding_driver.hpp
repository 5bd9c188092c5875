#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "device/device.hpp"

namespace guozhuang::test {

/// Forwards to another driver, also for sharing memory; a test overrides what it wants to change.
class ForwardingDriver : public device::Driver, public device::MemorySharing {
public:
    explicit ForwardingDriver(std::shared_ptr<device::Driver> inner) : inner_(std::move(inner)) {}

    int device_count() const noexcept override { return inner_->device_count(); }
    std::string description(int device) const override { return inner_->description(device); }
    std::optional<std::size_t> free_memory(int device) const noexcept override {
        return inner_->free_memory(device);
    }
    void require_healthy(int device) const override { inner_->require_healthy(device); }

    std::span<std::byte> allocate(int device, std::size_t bytes) override {
        return inner_->allocate(device, bytes);
    }
    void release(int device, std::span<std::byte> memory) noexcept override {
        inner_->release(device, memory);
    }
    std::span<std::byte> allocate_pinned(int device, std::size_t bytes) override {
        return inner_->allocate_pinned(device, bytes);
    }
    void release_pinned(int device, std::span<std::byte> memory) noexcept override {
        inner_->release_pinned(device, memory);
    }
    device::MemoryLocation location_of(const void* address) const override {
        return inner_->location_of(address);
    }

    void copy(device::Stream& stream, std::span<std::byte> to,
              std::span<const std::byte> from) override {
        inner_->copy(stream, to, from);
    }
    void copy_all(device::Stream& stream, std::span<const device::Copy> copies,
                  const device::Finish& finish) override {
        inner_->copy_all(stream, copies, finish);
    }
    void fill(device::Stream& stream, std::span<std::byte> memory,
              std::span<const std::byte> element) override {
        inner_->fill(stream, memory, element);
    }
    void reduce(device::Stream& stream, const device::Reduction& reduction,
                std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs) override {
        inner_->reduce(stream, reduction, outputs, inputs);
    }
    void sum_of_squares(device::Stream& stream, DType dtype, std::span<const std::byte> memory,
                        std::span<std::byte> scratch, double& into) override {
        inner_->sum_of_squares(stream, dtype, memory, scratch, into);
    }
    void write(device::Stream& stream, device::Word& word, std::uint32_t value) override {
        inner_->write(stream, word, value);
    }
    void wait(device::Stream& stream, device::Word& word, std::uint32_t value) override {
        inner_->wait(stream, word, value);
    }
    std::shared_ptr<device::Stream> make_stream(int device) override {
        return inner_->make_stream(device);
    }
    std::shared_ptr<device::Stream> wrap(StreamRef stream) override { return inner_->wrap(stream); }
    device::MemorySharing& sharing() noexcept override { return *this; }

    device::DeviceId id_of(int device) const override { return inner_->sharing().id_of(device); }
    device::MemoryOffer offer(int device, std::span<std::byte> memory) override {
        return inner_->sharing().offer(device, memory);
    }
    std::span<std::byte> open(int device, const device::MemoryOffer& offer) override {
        return inner_->sharing().open(device, offer);
    }
    void close(int device, const device::MemoryOffer& offer,
               std::span<std::byte> memory) noexcept override {
        inner_->sharing().close(device, offer, memory);
    }
    void register_host(int device, std::span<std::byte> memory) override {
        inner_->sharing().register_host(device, memory);
    }
    void unregister_host(int device, std::span<std::byte> memory) noexcept override {
        inner_->sharing().unregister_host(device, memory);
    }

private:
    const std::shared_ptr<device::Driver> inner_;
};

}  // namespace guozhuang::test
