#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "backends/host/scratch_pool.hpp"
#include "backends/host/staging_buffers.hpp"
#include "collectives/hierarchical/levels.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/policy.hpp"
#include "engine/backend.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::backends {

/// Collectives on memory that this processor can reach. See engine::Backend.
class HostBackend final : public engine::Backend {
public:
    using Policy = selection::Policy;

    /// If it can, stages in memory that the ranks of its set create for it. For the world's host
    /// tensors they create it here, so that this constructor is collective and throws what ends the
    /// job; otherwise with the first bundle that moves data.
    HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store,
                std::shared_ptr<trace::Timeline> timeline);

    void run(const engine::Bundle& bundle) override;
    bool run_eagerly(const engine::Bundle& bundle, std::uint64_t fingerprint) override;
    void decline_eager() noexcept override;

private:
    class SumSite;
    class Site;

    void create_stages();
    void add_up_contributions(const engine::Bundle& bundle);
    Policy usable_part_of(Policy policy) const;

    wire::GroupWire wire_;
    const wire::Group group_;
    const topology::HostGrid grid_;
    const hierarchical::RanksByHost by_host_;
    /// The same ranks in another order, for rings: the ranks of a host are neighbours.
    wire::GroupWire ring_;
    bool needs_stages_ = false;  ///< must create staging memory before it moves data
    std::optional<SetStagingBuffers> set_buffers_;
    std::optional<StagingTuner> tuner_;   ///< if all ranks reach each other's stages
    std::optional<Hierarchy> hierarchy_;  ///< if not all do, and the ranks fit
    std::shared_ptr<ScratchStore> store_;
    /// The scratch of the running bundle, and its integers as i64 if it has any. Kept after a
    /// failure, because messages may still use it.
    ScratchPool scratch_;
    std::optional<ScratchPool> wide_;
    ScratchPool eager_scratch_;  ///< for eager calls; kept here, so that they take no lock
    const std::shared_ptr<trace::Timeline> timeline_;
    Blocks blocks_, rest_;  ///< of a bundle; of its remainder if some of it is reduced in place
};

}  // namespace guozhuang::backends
