#pragma once

#include <cstdint>
#include <guozhuang/types.hpp>
#include <string_view>

namespace guozhuang::protocol {

/// The last three are matters of the log; no backend runs them.
enum class OperationKind : std::uint8_t {
    allreduce,
    all_gather,
    broadcast,
    all_to_all,
    reduce_scatter,
    barrier,
    create_process_set,
    remove_process_set,
    join
};
std::string_view name_of(OperationKind operation) noexcept;

/// How algorithms follow from sizes. Every log entry carries the policy of the rank that appended
/// it, so that no rank chooses for itself.
struct Policy {
    Algorithm forced = Algorithm::automatic;  ///< for allreduce
    bool reproducible = false;
    bool staging = false;  ///< the ranks have memory in which they stage data for each other
    std::uint64_t small_bytes = 0;
    std::uint64_t segment_bytes = 0;
    friend bool operator==(const Policy&, const Policy&) = default;
};

}  // namespace guozhuang::protocol
