#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/backend.hpp"
#include "wire/group/group.hpp"

namespace guozhuang::backends {

/// Gathers small values from all ranks of a process set, to choose a path or to order launches.
struct RankExchange {
    int rank = 0, ranks = 1;  ///< this rank in the set, and the set's size
    /// Returns the bytes of all ranks, by rank; every rank passes the same number. Collective.
    /// Throws what ends the job.
    std::function<std::vector<std::byte>(std::span<const std::byte>)> gather_bytes;

    /// Returns the values of all ranks, by rank. A T is sent as plain bytes.
    template <class T>
    std::vector<T> gather(const T& own) const {
        static_assert(std::is_trivially_copyable_v<T>);
        const auto bytes = gather_bytes(std::as_bytes(std::span(&own, 1)));
        std::vector<T> values(static_cast<std::size_t>(ranks));
        std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
        return values;
    }
};

/// An exchange in the group by host messages, with the policy of the bundle. `driving` moves them.
RankExchange exchange_for(const engine::Bundle& bundle, const wire::Group& group,
                          engine::Backend& driving);

}  // namespace guozhuang::backends
