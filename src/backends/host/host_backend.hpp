#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "backends/host/scratch_pool.hpp"
#include "backends/host/staging_buffers.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/policy.hpp"
#include "engine/backend.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::backends {

/// Collectives on memory that this processor can reach. See engine::Backend.
class HostBackend final : public engine::Backend {
public:
    using Policy = selection::Policy;

    /// Stages, where it can, in memory that the ranks of its set make for themselves: for the
    /// world's host tensors here, so that this constructor is collective, and throws what ends the
    /// job; else with the first bundle that moves data.
    HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store,
                std::shared_ptr<trace::Timeline> timeline);

    void run(const engine::Bundle& bundle) override;
    bool run_eagerly(const engine::Bundle& bundle, std::uint64_t fingerprint) override;
    void decline_eager() noexcept override;

private:
    class SumSite;
    class Site;

    void create_stages();
    Policy usable_part_of(Policy policy) const;

    wire::GroupWire wire_;
    const wire::Group group_;
    const topology::HostGrid grid_;
    /// The same ranks in another order, for rings: those of a host are neighbours.
    wire::GroupWire ring_;
    bool needs_stages_ = false;  ///< before it moves data, to make memory to stage in
    std::optional<SetStagingBuffers> set_buffers_;
    std::optional<StagingTuner> tuner_;   ///< of the stages, if all can reach each other's
    std::optional<Hierarchy> hierarchy_;  ///< if not, but where it can be
    std::shared_ptr<ScratchStore> store_;
    /// The scratch of the bundle under way, and its integers as i64 if it has any; after a failure
    /// they stay: messages may still use them.
    ScratchPool scratch_;
    std::optional<ScratchPool> wide_;
    ScratchPool eager_scratch_;  ///< an eager call's; this backend keeps it, and so takes no lock
    const std::shared_ptr<trace::Timeline> timeline_;
    Blocks blocks_, rest_;  ///< of a bundle; of what is left of it where some is reduced in place
};

}  // namespace guozhuang::backends
