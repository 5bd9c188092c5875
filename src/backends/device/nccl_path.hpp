#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backends/device/launch_order.hpp"
#include "backends/device/path.hpp"
#include "backends/device/rank_exchange.hpp"
#include "backends/device/results.hpp"
#include "backends/device/watched_communicator.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"
#include "engine/backend.hpp"
#include "wire/group/group.hpp"
#include "wire/shm/share_together.hpp"

namespace guozhuang::backends {

/// Moves tensors on devices by NCCL, if every rank has its own GPU. A large tensor is moved in
/// place. Small ones of one dtype are moved as one: in place if they are adjacent, otherwise packed
/// into scratch. All calls for a round of tensors form one NCCL group.
class NcclPath final : public Path {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        device::Nccl& nccl;
        int device = 0;      ///< its index
        wire::Group group;   ///< of the process set; this path waits through it
        LaunchOrder& order;  ///< of the rank
        const Results& results;
        std::chrono::milliseconds connect_limit;
        /// Owns the resources that the group refers to.
        std::shared_ptr<void> owner;
    };

    explicit NcclPath(Dependencies dependencies) : deps_(std::move(dependencies)) {}
    ~NcclPath() override { stop(); }
    NcclPath(const NcclPath&) = delete;
    NcclPath& operator=(const NcclPath&) = delete;

    /// Collective, with the same result on all ranks. Called before anything is enqueued. Throws
    /// what ends the job.
    std::optional<wire::SharingFailure> connect(const RankExchange& ranks);

    /// Whether NCCL gives the bundle the same results as the host; the same on all ranks.
    static bool moves(const engine::Bundle& bundle) noexcept;
    bool supports(const engine::Bundle& bundle) const noexcept override { return moves(bundle); }
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override;
    /// Never: a rank that aborts sends nothing more.
    bool was_released() const noexcept override { return false; }
    void stop() noexcept override;

private:
    /// Tensors that one call moves as one: a large one, or small ones of one dtype.
    struct FusedTensors {
        DType dtype = DType::f32;
        bool is_small = false;
        std::size_t bytes = 0;
        std::vector<std::span<std::byte>> tensors;
        std::span<std::byte> memory;  ///< where it is moved
        bool is_in_place() const noexcept { return memory.data() == tensors.front().data(); }
    };
    /// One tensor of a bundle whose results have rows, and the memory for its result.
    struct RowsTensor {
        DType dtype;
        std::size_t row_bytes;
        std::span<std::byte> from, into;
        std::span<const std::int64_t> splits;  ///< rows for each rank; reduce_scatter: or none
        std::span<const std::int64_t> rows;    ///< rows from each rank
        std::int64_t input_rows;
    };
    using Round = std::vector<FusedTensors>;

    int ranks() const noexcept { return static_cast<int>(deps_.group.ranks.size()); }
    int rank() const noexcept { return deps_.group.group_rank; }
    std::shared_ptr<WatchedCommunicator> communicator();
    void begin_to_connect(const device::NcclId& id, const RankExchange& ranks);
    [[noreturn]] void throw_late() const;
    void wait_for_end(std::chrono::milliseconds limit) const;
    void group(const std::function<void(device::NcclCommunicator&)>& calls);

    static std::vector<Round> rounds_of(const engine::Bundle& bundle);
    void find_memory(Round& round);
    /// The copies between a round's tensors and the memory in which NCCL moves them.
    static std::vector<device::Copy> copies_of(const Round& round, bool back);
    void copy(std::vector<device::Copy> copies, const device::Finish& finish,
              device::Stream& stream);
    void pack(const Round& round, const device::Finish& finish, device::Stream& stream);
    void unpack(const Round& round, const device::Finish& finish, device::Stream& stream);
    /// Enqueues one operation; defined for those whose tensors NCCL moves.
    template <OperationKind kind>
    // NOLINTNEXTLINE(modernize-use-equals-delete): it is for some
    void move(const engine::Bundle& bundle, device::Stream& stream) = delete;
    /// Calls call(communicator, tensor) for each tensor, in one group.
    template <class Call>
    void move_rows(const engine::Bundle& bundle, device::Stream& stream, const Call& call);
    std::vector<std::span<std::byte>> scaled_inputs(const engine::Bundle& bundle,
                                                    device::Stream& stream);
    std::span<std::byte> scratch(std::size_t bytes);

    const Dependencies deps_;
    /// The last one is in use; the stream may still use earlier ones, which were too small.
    std::vector<device::OwnedMemory> scratch_;
    base::Mutex mutex_;
    std::shared_ptr<WatchedCommunicator> communicator_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::backends
