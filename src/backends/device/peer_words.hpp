#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "backends/device/rank_exchange.hpp"
#include "base/wait.hpp"
#include "collectives/concepts/arena_site.hpp"
#include "device/device.hpp"
#include "wire/shm/share_together.hpp"

namespace guozhuang::backends {

/// Words through which the streams of the ranks on one host meet, whatever their devices. They lie
/// in host memory that all ranks have mapped. A word has one writer and one waiter, so a rank that
/// releases its own streams releases no other rank's.
class PeerWords {
public:
    static constexpr int most_ranks = 16;

    /// `device`: its index with `driver`. `ranks`: used by share() to exchange the page.
    PeerWords(std::shared_ptr<device::Driver> driver, int device, RankExchange ranks)
        : driver_(std::move(driver)), device_(device), ranks_(std::move(ranks)) {}

    /// Collective, with the same result on all ranks. Throws what ends the job. No other function
    /// may be called before it has succeeded.
    std::optional<wire::SharingFailure> share();

    /// Enqueues a write of a word and a wait for it. If the device cannot use the words, this
    /// throws, or the stream never gets past them.
    void try_on(device::Stream& stream);
    /// Tells all other ranks that the stream has reached `own`, if given, then makes it wait until
    /// their streams have reached `others`, if given.
    void meet(device::Stream& stream, std::optional<Moment> own, std::optional<Moment> others);
    /// The two halves of meet(), with one other rank.
    void announce_to(int peer, device::Stream& stream, const Moment& own);
    void wait_for(int peer, device::Stream& stream, const Moment& theirs);

    /// Unblocks this rank's streams: sets every word that they may wait for to a value beyond
    /// `count`. They then compute garbage, which other ranks' streams may take for data, so
    /// was_released() becomes true on all ranks first. Call it repeatedly: a peer that does not
    /// know yet may overwrite a word.
    void release(std::uint32_t count) noexcept;
    bool was_released() const noexcept;

    /// How many ranks have reached each step; their threads wait there for all ranks.
    std::atomic<std::uint32_t>& have_opened() noexcept;
    std::atomic<std::uint32_t>& have_tried() noexcept;
    std::atomic<std::uint32_t>& have_checked() noexcept;
    std::atomic<std::uint32_t>& have_closed() noexcept;

    /// The page, for an owner that must keep it because the device may still use it.
    std::shared_ptr<const void> memory() const noexcept { return page_; }

private:
    class Page;

    const std::shared_ptr<device::Driver> driver_;
    const int device_;
    const RankExchange ranks_;
    std::shared_ptr<Page> page_;
};

}  // namespace guozhuang::backends
