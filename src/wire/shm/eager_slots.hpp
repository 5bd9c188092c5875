#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

namespace guozhuang::wire {

/// Memory in which the ranks of one host take eager rounds (see EagerRounds). A view. What a rank
/// writes for round r lies where it wrote for round r-2.
struct EagerSlots {
    static constexpr std::size_t capacity = std::size_t{16} << 10;  ///< bytes of data of an offer

    /// What a rank offers in a round.
    struct alignas(64) Offer {
        std::atomic<std::uint64_t> round{0};  ///< the last for which it is complete
        std::uint64_t fingerprint = 0;
        std::array<std::byte, capacity> data;
    };
    struct alignas(64) Rank {
        std::atomic<std::uint64_t> finished{0};  ///< the last round whose slots it needs no more
        std::array<Offer, 2> offers;
    };
    /// What has become of a round: 2r+1 if round r goes ahead, 2r if not.
    using Decision = std::atomic<std::uint64_t>;
    struct alignas(64) Rounds {
        std::atomic<std::uint64_t> opened{0};  ///< the last round in which a rank has offered
        std::array<Decision, 2> decisions{};
    };

    Rounds* rounds;
    std::span<Rank> ranks;  ///< by group rank

    static constexpr std::size_t bytes_for(int ranks) noexcept {
        return sizeof(Rounds) + static_cast<std::size_t>(ranks) * sizeof(Rank);
    }
    /// Once, by whoever has made the memory, of bytes_for(); it begins at a cache line.
    static void initialise(std::span<std::byte> memory, int ranks) noexcept {
        ::new (memory.data()) Rounds;
        for (int rank = 0; rank < ranks; ++rank) ::new (memory.data() + bytes_for(rank)) Rank;
    }
    static EagerSlots in(std::span<std::byte> memory, int ranks) noexcept {
        return {.rounds = std::launder(reinterpret_cast<Rounds*>(memory.data())),
                .ranks = {std::launder(reinterpret_cast<Rank*>(memory.data() + bytes_for(0))),
                          static_cast<std::size_t>(ranks)}};
    }
};

}  // namespace guozhuang::wire
