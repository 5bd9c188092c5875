#pragma once

#include <guozhuang/stream.hpp>
#include <guozhuang/training.hpp>
#include <span>
#include <vector>

namespace guozhuang {

/// The stream on which a trainer works now, for each device that holds its gradients, or values of
/// parameters without a gradient. At first the device's default stream.
class CurrentStreams {
public:
    explicit CurrentStreams(std::span<const Parameter> parameters = {});
    /// False if nothing is on the stream's device.
    bool set(StreamRef stream);
    const std::vector<StreamRef>& all() const noexcept { return streams_; }
    /// Null for the host, and for other devices.
    const StreamRef* of(Device device) const;

private:
    std::vector<StreamRef> streams_;
};

}  // namespace guozhuang
