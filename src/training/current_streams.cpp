#include "training/current_streams.hpp"

#include <algorithm>

namespace guozhuang {

CurrentStreams::CurrentStreams(std::span<const Parameter> parameters) {
    for (const auto& parameter : parameters) {
        const auto device =
            parameter.has_gradient() ? parameter.gradient.device : parameter.value.device;
        if (device.kind != DeviceKind::host && of(device) == nullptr)
            streams_.push_back({.device = device, .native = nullptr});
    }
}

bool CurrentStreams::set(StreamRef stream) {
    const auto old = std::ranges::find(streams_, stream.device, &StreamRef::device);
    if (old == streams_.end()) return false;
    *old = stream;
    return true;
}

const StreamRef* CurrentStreams::of(Device device) const {
    const auto found = std::ranges::find(streams_, device, &StreamRef::device);
    return found == streams_.end() ? nullptr : &*found;
}

}  // namespace guozhuang
