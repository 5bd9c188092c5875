#include "backends/device/rank_exchange.hpp"

#include <utility>

#include "backends/device/results.hpp"

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

}  // namespace guozhuang::backends
