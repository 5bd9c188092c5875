#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "wire/member_wire.hpp"
#include "wire/shared_file.hpp"
#include "wire/staging.hpp"

namespace guozhuang::backends {

/// The staging memory of a process set: ranks of one host, but not what they share as a host, because a rank may stage for several sets at once. The first
/// member makes it, the others attach.
class SetStages {
public:
    /// Collective among the ranks of the wire. Empty on all if one could not have its part; the first of those warns. Throws what the wire throws.
    static std::optional<SetStages> meet(wire::MemberWire& wire, std::size_t stage_bytes);

    /// Valid while this object lives.
    wire::Staging staging() const noexcept;

private:
    SetStages(wire::SharedFile file, int ranks, std::size_t stage_bytes)
        : file_(std::move(file)), ranks_(ranks), stage_bytes_(stage_bytes) {}
    static SetStages create(int ranks, std::size_t stage_bytes);
    static SetStages attach(const wire::SharedFile::Offer& offer, int ranks, std::size_t stage_bytes);
    void reserve_stage(int rank);

    wire::SharedFile file_;
    int ranks_;
    std::size_t stage_bytes_;
};

}  // namespace guozhuang::backends
