#pragma once

#include <memory>

#include "backends/device/path.hpp"
#include "backends/device/results.hpp"

namespace guozhuang::backends {

/// For a process set of one rank: copies results to their memory, and scales.
class LonePath final : public Path {
public:
    LonePath(std::shared_ptr<device::Driver> driver, const Results& results)
        : driver_(std::move(driver)), results_(results) {}

    bool supports(const engine::Bundle&) const noexcept override { return true; }
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override {}
    bool was_released() const noexcept override { return false; }
    void stop() noexcept override {}

private:
    const std::shared_ptr<device::Driver> driver_;
    const Results& results_;
};

}  // namespace guozhuang::backends
