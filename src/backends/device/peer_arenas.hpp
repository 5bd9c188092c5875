#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backends/device/peer_words.hpp"
#include "backends/device/rank_exchange.hpp"
#include "base/wait.hpp"
#include "device/device.hpp"
#include "device/owned_memory.hpp"
#include "wire/shm/share_together.hpp"

namespace guozhuang::backends {

/// Device memory of each rank of a process set, which streams of all or some other ranks reach.
/// Ranks may share a device or a process. Only the destructor releases memory, because that may
/// wait for all work of the device.
class PeerArenas {
public:
    struct Dependencies {
        std::shared_ptr<device::Driver> driver;
        int device = 0;            ///< its index
        std::size_t bytes = 0;     ///< of each arena; the same on all ranks
        RankExchange ranks;        ///< on one host, at most PeerWords::most_ranks
        std::vector<int> reached;  ///< whose arenas this rank reaches, itself included
        bool writes = false;       ///< whether to try writes, too; then all ranks are reached
        base::Doorbell& doorbell;
        base::WaitSettings wait;
    };
    explicit PeerArenas(Dependencies dependencies);
    /// Releases its own arena once all ranks are here, or keeps it for ever.
    ~PeerArenas();
    PeerArenas(const PeerArenas&) = delete;
    PeerArenas& operator=(const PeerArenas&) = delete;

    /// Collective, with the same result on all ranks. Checks that each rank reaches the arenas that
    /// it must reach. Throws what ends the job. No other function may be called before it has
    /// succeeded.
    std::optional<wire::SharingFailure> share();

    /// The arena of a rank, by the address at which this rank's device reaches it.
    std::span<std::byte> of(int rank) const { return arenas_.at(rank).memory; }
    int rank() const noexcept { return deps_.ranks.rank; }
    int ranks() const noexcept { return deps_.ranks.ranks; }
    PeerWords& words() noexcept { return words_; }

private:
    struct Offer;

    device::OwnedMemory allocate() const;
    Offer make_offer();
    void open(std::span<const Offer> offers);
    void require_written(std::span<const std::uint64_t> tokens);
    std::span<std::byte> read_of(int rank) const;
    void meet(std::atomic<std::uint32_t>& have_come);
    void wait_until_done();
    bool is_tried_out() noexcept;
    bool have_all_closed() noexcept;

    const Dependencies deps_;
    PeerWords words_;
    std::shared_ptr<device::Stream> stream_;  ///< for the trial; null once that has succeeded
    device::OwnedMemory own_;
    device::OwnedMemory read_;
    std::map<int, device::OwnedMemory> arenas_;  ///< by rank
    bool is_offered_ = false;                    ///< other ranks may open it
};

}  // namespace guozhuang::backends
