#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/timeline.hpp"
#include "collectives/blocks.hpp"
#include "collectives/select.hpp"
#include "engine/backend.hpp"
#include "wire/host_grid.hpp"
#include "wire/member_peers.hpp"
#include "wire/member_wire.hpp"

namespace guozhuang::backends {

/// Memory for algorithms that is made once and kept: it grows to the largest need. Starts at a cache line.
class ScratchPool {
public:
    ScratchPool() = default;
    ScratchPool(ScratchPool&& other) noexcept { swap(other); }
    ScratchPool& operator=(ScratchPool&& other) noexcept {
        swap(other);
        return *this;
    }
    ~ScratchPool() = default;

    std::span<std::byte> get(std::size_t bytes);

private:
    struct Free {
        void operator()(std::byte* memory) const noexcept;
    };
    void swap(ScratchPool& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(bytes_, other.bytes_);
    }
    std::unique_ptr<std::byte, Free> memory_;
    std::size_t bytes_ = 0;
};

/// The scratch memory of a rank, lent to whichever of its backends runs a bundle: many process sets need no more than those in use at once.
/// Thread-safe.
class ScratchStore {
public:
    ScratchPool take();
    void give_back(ScratchPool pool);

private:
    base::Mutex mutex_;
    std::vector<ScratchPool> pools_ GUOZHUANG_GUARDED_BY(mutex_);
};

/// Whether all ranks have stages that all can reach, with room for as many. The same on all ranks.
bool can_stage(wire::Transport& transport);

/// A group on several hosts, for what goes level by level: the members on this rank's host, and those that have its place on each host. The group is
/// the world: a transport's stages are those of all ranks of a host.
class Levels {
public:
    /// Whether it can be, which is the same on all members: there are as many members on each host, more than one, and they have stages with room
    /// enough.
    static bool suit(const wire::Group& group);
    explicit Levels(const wire::Group& group);
    Levels(const Levels&) = delete;
    Levels& operator=(const Levels&) = delete;

    wire::MemberPeers& local() noexcept { return local_; }
    wire::MemberWire& across() noexcept { return across_; }

private:
    wire::HostGrid grid_;
    wire::MemberPeers local_;
    wire::MemberWire across_;
};

/// Collectives on memory that this processor can reach: host tensors and those of the host fake. See engine::Backend.
class HostBackend final : public engine::Backend {
public:
    /// `stages`: whether it is the one backend that uses the transport's staging memory, if there is any; the group is then the world.
    HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store, bool stages, std::shared_ptr<base::Timeline> timeline);

    std::string_view name() const noexcept override { return "host"; }
    void run(const engine::Bundle& bundle) override;

private:
    /// Pieces that one algorithm moves as one: of one dtype and one order of summing.
    struct Part {
        DType dtype = DType::f32;
        bool small = false;  ///< of the order class of small tensors
        std::size_t largest_bytes = 0, total_bytes = 0;
        std::vector<std::span<std::byte>> members;
    };

    void move(const engine::Bundle& bundle);
    void allreduce(const engine::Bundle& bundle);
    void allreduce(const engine::Bundle& bundle, const Part& part);
    void allreduce_by_levels(const engine::Bundle& bundle, const Part& part, std::size_t segment_bytes);
    void adasum(const engine::Bundle& bundle, const Part& part);
    void broadcast(const engine::Bundle& bundle);
    void barrier(const engine::Policy& policy);
    void all_gather(const engine::Policy& policy, const engine::Piece& piece);
    void all_to_all(const engine::Policy& policy, const engine::Piece& piece);
    void reduce_scatter(const engine::Bundle& bundle, const engine::Piece& piece);
    bool stages(const engine::Policy& policy) const noexcept { return policy.staging && peers_; }
    void gather(const engine::Policy& policy, std::span<const std::span<std::byte>> places);
    void exchange(const engine::Policy& policy, std::span<const std::span<const std::byte>> parts,
                  std::span<const std::span<std::byte>> places, std::size_t longest_bytes);
    static base::TimelineFacts facts_of(std::string_view algorithm, const Part& part);
    std::vector<Part> parts_of(const engine::Bundle& bundle) const;
    selection::Settings settings_of(const engine::Policy& policy) const;

    wire::MemberWire wire_;
    std::optional<wire::MemberPeers> peers_;  ///< if all can reach each other's stages
    std::optional<Levels> levels_;            ///< if not, but where it can be
    std::shared_ptr<ScratchStore> store_;
    ScratchPool scratch_;  ///< of the bundle under way; after a failure it stays, since messages may still use it
    const std::shared_ptr<base::Timeline> timeline_;
    Blocks blocks_;
};

}  // namespace guozhuang::backends
