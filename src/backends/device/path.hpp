#pragma once

#include "engine/backend.hpp"

namespace guozhuang::backends {

/// One of the ways in which bundles of tensors on a device move.
class Path : public engine::StreamBackend {
public:
    /// Whether it moves such bundles; the same on all ranks.
    virtual bool supports(const engine::Bundle& bundle) const noexcept = 0;
};

}  // namespace guozhuang::backends
