#pragma once

#include <atomic>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <memory>
#include <type_traits>
#include <utility>

#include "backends/device/arena_site.hpp"
#include "collectives/device/arena_exchange.hpp"
#include "collectives/device/arena_ring.hpp"

namespace guozhuang::backends {

/// Moves tensors through the arenas of the ranks' devices, by the operations of `Way`
/// (collectives/device).
template <class Way>
class ArenaPath final : public Path {
public:
    /// `arenas`: share() has succeeded, for the peers that `Way` reads.
    ArenaPath(std::shared_ptr<device::Driver> driver, std::shared_ptr<PeerArenas> arenas,
              const Results& results)
        : driver_(std::move(driver)), arenas_(std::move(arenas)), results_(results) {}

    bool supports(const engine::Bundle& bundle) const noexcept override {
        bool moves = false;
        visit(bundle.description->operation, [&]<OperationKind kind>() { moves = has<kind>; });
        return moves && bundle.description->op != ReduceOp::adasum;
    }
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override {
        const auto& given = bundle->bundle();
        StreamArenaSite site({*driver_, *arenas_, results_, chunks_}, given, stream);
        visit(given.description->operation, [&]<OperationKind kind>() {
            if constexpr (has<kind>)
                Way::template operation<kind>()(site);
            else
                throw Error(ErrorCode::internal, "an operation that this path does not move");
        });
    }
    void release() noexcept override {
        arenas_->words().release(Way::count_before(chunks_, arenas_->ranks()));
    }
    bool was_released() const noexcept override { return arenas_->words().was_released(); }
    void stop() noexcept override {}

private:
    template <OperationKind kind>
    static constexpr bool has = !std::is_null_pointer_v<decltype(Way::template operation<kind>())>;

    const std::shared_ptr<device::Driver> driver_;
    const std::shared_ptr<PeerArenas> arenas_;
    const Results& results_;
    std::atomic<std::uint32_t> chunks_{0};  ///< the next chunk's number
};

/// Every rank reaches the arenas of all ranks.
struct DirectWay {
    template <OperationKind kind>
    static constexpr auto operation() noexcept {
        return arenas::exchange<kind>;
    }
    static std::uint32_t count_before(std::uint32_t number, int) noexcept { return number; }
};
/// Each rank reaches the arena of its left neighbour.
struct RingWay {
    template <OperationKind kind>
    static constexpr auto operation() noexcept {
        return arenas::around<kind>;
    }
    static std::uint32_t count_before(std::uint32_t number, int ranks) noexcept {
        return arenas::count_before(number, ranks);
    }
};

}  // namespace guozhuang::backends
