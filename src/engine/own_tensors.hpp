#pragma once

#include <memory>
#include <new>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "engine/pending.hpp"

namespace guozhuang::engine {

/// Copies of a request's tensors, in the library's own memory on the same device. An operation goes
/// on with them when the owner of its tensors is destroyed before it is complete.
class OwnTensors {
public:
    /// Throws what allocating and copying throw. On a device the copies are only enqueued.
    explicit OwnTensors(const Request& request);
    ~OwnTensors();
    OwnTensors(const OwnTensors&) = delete;
    OwnTensors& operator=(const OwnTensors&) = delete;

    const std::vector<TensorView>& tensors() const noexcept { return tensors_; }
    /// The event that marks the end of copying on a device; empty for plain host tensors.
    const std::vector<std::shared_ptr<device::Event>>& filled() const noexcept { return filled_; }
    bool are_filled() const { return filled_.empty() || filled_.front()->done(); }

private:
    // Delegated to, so that the destructor releases the memory if the copying throws.
    OwnTensors(std::shared_ptr<device::Driver> device, std::shared_ptr<void> kept);
    std::span<std::byte> allocate(const TensorView& original);

    std::shared_ptr<device::Driver> device_;  ///< null on the plain host
    std::vector<std::shared_ptr<device::Event>> filled_;
    /// The request's former keep_alive. Its destructor may run user code.
    std::shared_ptr<void> keep_alive_;
    std::vector<TensorView> tensors_;
};

}  // namespace guozhuang::engine
