#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <span>
#include <string>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/staged/stage_layout.hpp"

namespace guozhuang::direct {

/// Where the members of a bundle lie on every rank: each rank shows in one round where its own do,
/// and knows in the next about all. What all ranks can reach of a member is reduced in place, if it
/// is half of the member at least; the rest of the bundle is `rest()`.
template <PeerMemory P>
class Places {
public:
    /// Bytes [begin, end) of a member.
    struct Stretch {
        std::size_t begin = 0, end = 0;
        std::size_t bytes() const noexcept { return end - begin; }
    };

    /// Bytes of scratch for so many members.
    static constexpr std::size_t scratch_bytes(std::size_t members) {
        return padded_array<Stretch>(members) + padded_array<std::span<std::byte>>(2 * members);
    }

    Places(P& peers, std::span<const std::span<std::byte>> members, Scratch& scratch)
        : peers_(peers),
          members_(members),
          common_(scratch.cut_array<Stretch>(members.size())),
          rest_(scratch.cut_array<std::span<std::byte>>(2 * members.size())),
          layout_(peers.stage(peers.rank()).size(), peers.size()),
          round_(peers.round()) {}

    /// Shows this rank's on its stage, in the round it is in; of as many members as there is room
    /// for. False, and nothing of `given` is in use, if all of them are private.
    bool show() {
        const auto stage = peers_.stage(peers_.rank());
        const auto room = layout_.places(stage, round_);
        auto& shown = layout_.places_shown(stage, round_);
        shown = 0;
        for (std::size_t member = 0; member < std::min(members_.size(), room.size()); ++member) {
            room[member] = peers_.place(members_[member]);
            if (is_worth_it(room[member].bytes, members_[member].size())) shown = members_.size();
        }
        return shown != 0;
    }

    /// After that round, and the same on all ranks: whether some rank has shown its own; and
    /// whether there is something that all can reach.
    bool are_somewhere() const {
        for (int peer = 0; peer < peers_.size(); ++peer)
            if (shown(peer) != 0) return true;
        return false;
    }
    bool are_everywhere() {
        for (int peer = 0; peer < peers_.size(); ++peer)
            if (shown(peer) == 0) return false;
        const auto room = layout_.places(peers_.stage(peers_.rank()), round_).size();
        bool any = false;
        for (std::size_t member = 0; member < std::min(members_.size(), room); ++member) {
            common_[member] = common_of(member);
            any = any || common_[member].bytes() > 0;
        }
        return any;
    }

    std::span<const std::span<std::byte>> members() const noexcept { return members_; }

    /// If there is something that all can reach: the stretch of a member, empty if it is private.
    /// It stays when the tables are gone.
    const Stretch& common(std::size_t member) const noexcept { return common_[member]; }
    /// What is before and after those stretches, and private members: as pieces of the same lengths
    /// on all ranks.
    std::span<const std::span<std::byte>> rest() {
        std::size_t count = 0;
        for (std::size_t member = 0; member < members_.size(); ++member)
            for (const auto piece : {members_[member].first(common_[member].begin),
                                     members_[member].subspan(common_[member].end)})
                if (!piece.empty()) rest_[count++] = piece;
        return rest_.first(count);
    }
    /// A rank's memory of a stretch within the common one, in the round after the one in which it
    /// was shown.
    std::span<std::byte> at(int peer, std::size_t member, const Stretch& stretch) const {
        auto place = places(peer)[member];
        place.offset += stretch.begin - place.begin;
        place.bytes = stretch.bytes();
        const auto memory = peers_.at(peer, place);
        if (memory.size() != stretch.bytes())
            throw Error(ErrorCode::wire,
                        "rank " + std::to_string(peer) + " names memory that it has not opened");
        return memory;
    }

private:
    /// Whoever has a region has all ranks' parts of it. Whole elements: memory may begin anywhere.
    Stretch common_of(std::size_t member) const {
        const auto bytes = members_[member].size();
        Stretch stretch{0, bytes};
        const auto region = places(0)[member].region;
        for (int peer = 0; peer < peers_.size(); ++peer) {
            const auto& place = places(peer)[member];
            if (place.region != region || region == 0 || place.begin > bytes ||
                place.bytes > bytes - place.begin)
                return {};
            stretch.begin = std::max(stretch.begin, static_cast<std::size_t>(place.begin));
            stretch.end =
                std::min(stretch.end, static_cast<std::size_t>(place.begin + place.bytes));
        }
        stretch.begin = (stretch.begin + grain - 1) / grain * grain;
        if (stretch.end != bytes) stretch.end = stretch.end / grain * grain;
        return stretch.begin < stretch.end && is_worth_it(stretch.bytes(), bytes) ? stretch
                                                                                  : Stretch{};
    }

    static constexpr std::size_t grain = 16;  // a multiple of every element's size

    static bool is_worth_it(std::uint64_t open, std::size_t all) noexcept {
        return open > 0 && open >= all / 2;
    }

    std::uint64_t shown(int peer) const {
        const auto count = layout_.places_shown(peers_.stage(peer), round_);
        return count == members_.size() ? count : 0;
    }
    std::span<const Place> places(int peer) const {
        return layout_.places(peers_.stage(peer), round_);
    }

    P& peers_;
    std::span<const std::span<std::byte>> members_;
    std::span<Stretch> common_;  ///< by member
    std::span<std::span<std::byte>> rest_;
    StageLayout layout_;
    std::uint64_t round_;
};

}  // namespace guozhuang::direct
