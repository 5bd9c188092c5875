#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backends/host/scratch_pool.hpp"
#include "backends/host/staging_buffers.hpp"
#include "collectives/layout/blocks.hpp"
#include "collectives/policy.hpp"
#include "engine/backend.hpp"
#include "trace/timeline.hpp"

namespace guozhuang::backends {

/// Collectives on memory that this processor can reach: host tensors and those of the host fake.
/// See engine::Backend.
class HostBackend final : public engine::Backend {
public:
    using Policy = selection::Policy;

    /// Stages, where it can, in memory that the ranks of its set make for themselves: for the
    /// world's host tensors here, so that this constructor is collective, and throws what ends the
    /// job; else with the first bundle that moves data.
    HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store,
                std::shared_ptr<trace::Timeline> timeline);

    void run(const engine::Bundle& bundle) override;
    bool run_eagerly(const engine::EagerAllreduce& allreduce) override;
    void decline_eager() noexcept override;

private:
    /// Tensors that one algorithm moves as one: of one dtype and one order of summing.
    struct FusedTensors {
        DType dtype = DType::f32;
        bool small = false;  ///< of the order class of small tensors
        std::size_t largest_bytes = 0, total_bytes = 0;
        std::vector<std::span<std::byte>> tensors;
    };

    class Site;

    void move(const engine::Bundle& bundle);
    void allreduce(const engine::Bundle& bundle);
    void allreduce(const engine::Bundle& bundle, const FusedTensors& fused);
    void average_integers(const engine::Bundle& bundle, const FusedTensors& fused);
    void adasum(const engine::Bundle& bundle, const FusedTensors& fused);
    void broadcast(const engine::Bundle& bundle);
    void barrier(const Policy& policy);
    void all_gather(const Policy& policy, const engine::BundleEntry& entry);
    void all_to_all(const Policy& policy, const engine::BundleEntry& entry);
    void reduce_scatter(const engine::Bundle& bundle, const engine::BundleEntry& entry);
    void average_scatter(const engine::Bundle& bundle, const engine::BundleEntry& entry);
    std::span<std::int64_t> wide_numbers(std::size_t count);
    void create_stages();
    template <class Move>
    void stage(protocol::OperationKind operation, std::size_t bytes, const Move& move);
    bool uses_staging(const Policy& policy) const noexcept { return policy.staging && tuner_; }
    void gather(const Policy& policy, std::span<const std::span<std::byte>> destinations);
    void exchange(const Policy& policy, std::span<const std::span<const std::byte>> sources,
                  std::span<const std::span<std::byte>> destinations, std::size_t longest_bytes);
    static trace::TimelineFacts facts_of(std::string_view algorithm, const FusedTensors& fused);
    std::vector<FusedTensors> fused_tensors_of(const engine::Bundle& bundle) const;
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
    /// The scratch of the bundle under way, and its integers as i64; after a failure they stay:
    /// messages may still use them.
    ScratchPool scratch_, wide_;
    ScratchPool eager_scratch_;  ///< an eager call's; this backend keeps it, and so takes no lock
    const std::shared_ptr<trace::Timeline> timeline_;
    Blocks blocks_, rest_;  ///< of a bundle; of what is left of it where some is reduced in place
};

}  // namespace guozhuang::backends
