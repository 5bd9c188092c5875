#pragma once

#include <cstdint>
#include <string_view>

namespace guozhuang::protocol {

/// The last three are matters of the log; no backend runs them.
enum class OperationKind : std::uint8_t {
    allreduce = 0,
    all_gather = 1,
    broadcast = 2,
    all_to_all = 3,
    reduce_scatter = 4,
    barrier = 5,
    create_process_set = 6,
    remove_process_set = 7,
    join = 8
};
constexpr OperationKind last_of(OperationKind) noexcept {
    return OperationKind::join;
}
std::string_view name_of(OperationKind operation) noexcept;
/// Whether it gives results, whose rows it counts.
constexpr bool has_rows(OperationKind operation) noexcept {
    return operation == OperationKind::all_gather || operation == OperationKind::all_to_all ||
           operation == OperationKind::reduce_scatter;
}

}  // namespace guozhuang::protocol
