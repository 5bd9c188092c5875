#pragma once

#include <span>
#include <vector>

#include "device/device.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// Enqueues copies and reductions of a bundle on its stream. A reduction without elements enqueues
/// nothing.
struct BundleWork {
    using Copies = std::vector<device::Copy>;

    void copy(const Copies& copies, const device::Finish& finish = {}) const {
        driver.copy_all(stream, copies, finish);
    }
    void reduce(const device::Reduction& reduction, std::span<const std::span<std::byte>> outputs,
                const std::vector<std::span<const std::byte>>& inputs) const {
        if (!outputs.front().empty()) driver.reduce(stream, reduction, outputs, inputs);
    }

    device::Driver& driver;
    const engine::Bundle& bundle;
    device::Stream& stream;
};

}  // namespace guozhuang::backends
