#include "backends/device/rank_exchange.hpp"

#include <algorithm>
#include <utility>

#include "backends/device/results.hpp"
#include "collectives/ring/all_gather.hpp"
#include "wire/group/group_wire.hpp"

namespace guozhuang::backends {

RankExchange exchange_for(const engine::Bundle& bundle, const wire::Group& group,
                          engine::Backend& driving) {
    return {group.group_rank, static_cast<int>(group.ranks.size()),
            [&driving, all_gather = all_gather_bundle(bundle)](std::span<const std::byte> own) {
                std::vector<std::byte> bytes(own.begin(), own.end());
                const TensorView tensor(bytes.data(), DType::u8,
                                        {static_cast<std::int64_t>(bytes.size())});
                Result result;
                auto bundle_of_own = all_gather;
                bundle_of_own.entries.push_back({.tensor = tensor, .result = &result});
                driving.run(bundle_of_own);
                return std::move(result.bytes);
            }};
}

RankExchange exchange_among(const wire::Group& group) {
    return {group.group_rank, static_cast<int>(group.ranks.size()),
            [group](std::span<const std::byte> own) {
                std::vector<std::byte> all(own.size() * group.ranks.size());
                std::vector<std::span<std::byte>> blocks;
                for (std::size_t rank = 0; rank < group.ranks.size(); ++rank)
                    blocks.push_back(std::span(all).subspan(rank * own.size(), own.size()));
                wire::GroupWire wire(group);
                std::ranges::copy(own, blocks[static_cast<std::size_t>(wire.rank())].begin());
                ring::all_gather(wire, blocks);
                return all;
            }};
}

}  // namespace guozhuang::backends
