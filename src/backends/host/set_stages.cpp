#include "backends/host/set_stages.hpp"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "collectives/ring/all_gather.hpp"

namespace guozhuang::backends {
namespace {

constexpr std::size_t page_bytes = std::size_t{64} << 10;  // the largest that Linux uses, so whole pages everywhere

// Progress words; then, from a page of its own, the stages.
std::size_t stages_offset(int ranks) {
    const auto end = static_cast<std::size_t>(ranks) * sizeof(wire::Staging::Progress);
    return (end + page_bytes - 1) / page_bytes * page_bytes;
}

std::size_t bytes_for(int ranks, std::size_t stage_bytes) {
    return stages_offset(ranks) + static_cast<std::size_t>(ranks) * stage_bytes;
}

/// Every rank's value, by position.
template <class T>
std::vector<T> gather(wire::MemberWire& wire, const T& own) {
    std::vector<T> all(static_cast<std::size_t>(wire.size()));
    all[static_cast<std::size_t>(wire.rank())] = own;
    std::vector<std::span<std::byte>> places;
    for (auto& each : all) places.push_back(std::as_writable_bytes(std::span(&each, 1)));
    ring::all_gather(wire, places);
    return all;
}

}  // namespace

SetStages SetStages::create(int ranks, std::size_t stage_bytes) {
    SetStages stages(wire::SharedFile::create(bytes_for(ranks, stage_bytes)), ranks, stage_bytes);
    stages.file_.reserve(0, stages_offset(ranks));
    auto* const progress = reinterpret_cast<wire::Staging::Progress*>(stages.file_.memory().data());
    for (int rank = 0; rank < ranks; ++rank) ::new (progress + rank) wire::Staging::Progress;
    return stages;
}

SetStages SetStages::attach(const wire::SharedFile::Offer& offer, int ranks, std::size_t stage_bytes) {
    return {wire::SharedFile::attach(offer, bytes_for(ranks, stage_bytes)), ranks, stage_bytes};
}

void SetStages::reserve_stage(int rank) {
    file_.reserve(stages_offset(ranks_) + static_cast<std::size_t>(rank) * stage_bytes_, stage_bytes_);
}

wire::Staging SetStages::staging() const noexcept {
    const auto memory = file_.memory();
    return {.progress = {std::launder(reinterpret_cast<wire::Staging::Progress*>(memory.data())), static_cast<std::size_t>(ranks_)},
            .stages = memory.subspan(stages_offset(ranks_))};
}

std::optional<SetStages> SetStages::meet(wire::MemberWire& wire, std::size_t stage_bytes) {
    std::optional<SetStages> stages;
    std::string failure;
    const auto attempt = [&](auto&& make) {
        try {
            stages.emplace(make());
            stages->reserve_stage(wire.rank());
        } catch (const std::exception& error) {  // the others wait for the answer, whatever it is
            failure = error.what();
            stages.reset();
        }
    };
    wire::SharedFile::Offer offer;
    if (wire.rank() == 0) {
        attempt([&] { return create(wire.size(), stage_bytes); });
        if (stages) offer = stages->file_.offer();
    }
    offer = gather(wire, offer).front();
    if (wire.rank() != 0) attempt([&] { return attach(offer, wire.size(), stage_bytes); });
    const auto have = gather(wire, static_cast<std::uint8_t>(stages.has_value()));
    const auto without = std::ranges::find(have, 0) - have.begin();
    if (std::cmp_equal(without, have.size())) {
        stages->file_.close_file();
        return stages;
    }
    if (without == wire.rank()) {
        std::vector<int> ranks;
        for (int position = 0; position < wire.size(); ++position) ranks.push_back(wire.world_rank(position));
        base::log_warning(
            fmt::format("process set {}: no memory to stage in ({}): its data travels as messages", fmt::join(ranks, ","), failure));
    }
    return std::nullopt;
}

}  // namespace guozhuang::backends
