#pragma once

#include <guozhuang/stream.hpp>
#include <guozhuang/training.hpp>
#include <span>
#include <vector>

namespace guozhuang {

/// The stream on which a trainer works now, for each device of its gradients: at first the default
/// one.
class CurrentStreams {
public:
    explicit CurrentStreams(std::span<const Parameter> parameters = {});
    /// False if no gradient is on the stream's device.
    bool set(StreamRef stream);
    const std::vector<StreamRef>& all() const noexcept { return streams_; }
    /// Null for the host, and for devices without gradients.
    const StreamRef* of(Device device) const;

private:
    std::vector<StreamRef> streams_;
};

}  // namespace guozhuang
