#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <guozhuang/error.hpp>
#include <new>
#include <span>
#include <string>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::staged {

/// Where the tensors of a bundle lie on every rank. Each rank shows refs to its own tensors in one
/// round, and knows those of all ranks when it has awaited it. The part of a tensor that all ranks
/// can reach is reduced in place if it is at least half of the tensor; `rest()` is the rest of the
/// bundle.
template <PeerMemory P>
class TensorRegions {
public:
    /// Bytes [begin, end) of a tensor.
    struct ByteRange {
        std::size_t begin = 0, end = 0;
        std::size_t bytes() const noexcept { return end - begin; }
    };

    /// Bytes of scratch for this many tensors.
    static constexpr std::size_t scratch_bytes(std::size_t tensors) {
        return padded_array<ByteRange>(tensors) + padded_array<std::span<std::byte>>(2 * tensors);
    }

    TensorRegions(P& group, std::span<const std::span<std::byte>> tensors, Scratch& scratch)
        : group_(group),
          tensors_(tensors),
          common_(scratch.cut_array<ByteRange>(tensors.size())),
          rest_(scratch.cut_array<std::span<std::byte>>(2 * tensors.size())),
          round_(group.round()) {}

    /// Shows refs to this rank's tensors in the current round, to as many as there is room for.
    /// Returns false if none of them is worth it: then the room is free for contributions.
    bool show() {
        const auto room = refs(group_.rank());
        const auto tensors = tensors_.first(std::min(tensors_.size(), room.size()));
        const bool any_is_worth_it = std::ranges::any_of(tensors, [&](const auto& tensor) {
            return is_worth_it(group_.locate(tensor).bytes, tensor.size());
        });
        const std::uint64_t count = any_is_worth_it ? tensors_.size() : 0;
        std::memcpy(group_.note(group_.rank(), round_).data(), &count, sizeof count);
        if (!any_is_worth_it) return false;
        std::ranges::transform(tensors, room.begin(),
                               [&](const auto& tensor) { return group_.locate(tensor); });
        return true;
    }

    /// After that round, on all ranks alike: whether some rank has shown refs; and (find_common)
    /// whether all ranks can reach enough of some tensor.
    bool any_rank_has_shown() const {
        for (int peer = 0; peer < group_.size(); ++peer)
            if (has_shown(peer)) return true;
        return false;
    }
    bool find_common() {
        for (int peer = 0; peer < group_.size(); ++peer)
            if (!has_shown(peer)) return false;
        const auto shown = std::min(tensors_.size(), refs(group_.rank()).size());
        bool any = false;
        for (std::size_t tensor = 0; tensor < shown; ++tensor) {
            common_[tensor] = common_of(tensor);
            any = any || common_[tensor].bytes() > 0;
        }
        return any;
    }

    std::span<const std::span<std::byte>> tensors() const noexcept { return tensors_; }

    /// After find_common() has returned true: the range of a tensor that all can reach; empty if
    /// there is none. Valid also when the refs have been overwritten.
    const ByteRange& common(std::size_t tensor) const noexcept { return common_[tensor]; }
    /// The bundle without those ranges, as spans of the same lengths on all ranks.
    std::span<const std::span<std::byte>> rest() {
        std::size_t count = 0;
        for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor)
            for (const auto outside : {tensors_[tensor].first(common_[tensor].begin),
                                       tensors_[tensor].subspan(common_[tensor].end)})
                if (!outside.empty()) rest_[count++] = outside;
        return rest_.first(count);
    }
    /// A rank's memory of a range within the common one. To be called while the refs are there.
    std::span<std::byte> at(int peer, std::size_t tensor, const ByteRange& range) const {
        auto ref = refs(peer)[tensor];
        ref.offset += range.begin - ref.begin;
        ref.bytes = range.bytes();
        const auto memory = group_.at(peer, ref);
        if (memory.size() != range.bytes())
            throw Error(ErrorCode::wire,
                        "rank " + std::to_string(peer) + " names memory that it has not opened");
        return memory;
    }

private:
    /// A rank that has mapped a region has mapped all ranks' memory in it. Keeps to whole elements,
    /// since shared memory may begin anywhere in a tensor.
    ByteRange common_of(std::size_t tensor) const {
        const auto bytes = tensors_[tensor].size();
        ByteRange range{0, bytes};
        const auto region = refs(0)[tensor].region;
        for (int peer = 0; peer < group_.size(); ++peer) {
            const auto& ref = refs(peer)[tensor];
            if (ref.region != region || region == 0 || ref.begin > bytes ||
                ref.bytes > bytes - ref.begin)
                return {};
            range.begin = std::max(range.begin, static_cast<std::size_t>(ref.begin));
            range.end = std::min(range.end, static_cast<std::size_t>(ref.begin + ref.bytes));
        }
        range.begin = (range.begin + grain - 1) / grain * grain;
        if (range.end != bytes) range.end = range.end / grain * grain;
        return range.begin < range.end && is_worth_it(range.bytes(), bytes) ? range : ByteRange{};
    }

    static constexpr std::size_t grain = 16;  // a multiple of every element's size

    static bool is_worth_it(std::uint64_t open, std::size_t all) noexcept {
        return open > 0 && open >= all / 2;
    }

    bool has_shown(int peer) const {
        std::uint64_t count = 0;
        std::memcpy(&count, group_.note(peer, round_).data(), sizeof count);
        return count != 0 && count == tensors_.size();
    }
    std::span<RegionRef> refs(int peer) const {
        const auto room = group_.room(peer, round_);
        return {std::launder(reinterpret_cast<RegionRef*>(room.data())),
                room.size() / sizeof(RegionRef)};
    }

    P& group_;
    std::span<const std::span<std::byte>> tensors_;
    std::span<ByteRange> common_;  ///< by tensor
    std::span<std::span<std::byte>> rest_;
    std::uint64_t round_;
};

}  // namespace guozhuang::staged
