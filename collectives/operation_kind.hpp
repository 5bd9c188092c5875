#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

/// The table of operations: the facts that callers need without running one. The file of each in
/// operations/ runs it.
namespace guozhuang {

/// The numbers travel.
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

struct OperationRow {
    OperationKind kind;
    std::string_view name;
    /// The tensors receive the results, element by element, so several may be moved as one, or one
    /// in parts.
    bool in_place = false;
    /// Each tensor has its own result, with a number of rows.
    bool has_rows = false;
    bool rows_differ = false;    ///< dim 0 of the tensor need not be the same on all ranks
    bool has_splits = false;     ///< it cuts its tensor into a number of rows for each rank
    bool splits_agreed = false;  ///< they must be the same on all ranks
    bool has_op = false;         ///< a reduce op, and scales
    /// An in-place operation without an op copies the root's tensors to the others.
    bool has_root = false;
    bool in_log_only = false;  ///< executed by the engine; no backend runs it
    /// Fails if a rank has joined. Other operations take neutral values from such a rank; one with
    /// a root fails only if the root has joined.
    bool needs_all_ranks = false;
};

/// The operations by number.
inline constexpr OperationRow operations[] = {
    {.kind = OperationKind::allreduce, .name = "allreduce", .in_place = true, .has_op = true},
    {.kind = OperationKind::all_gather,
     .name = "all_gather",
     .has_rows = true,
     .rows_differ = true},
    {.kind = OperationKind::broadcast, .name = "broadcast", .in_place = true, .has_root = true},
    {.kind = OperationKind::all_to_all,
     .name = "all_to_all",
     .has_rows = true,
     .rows_differ = true,
     .has_splits = true,
     .needs_all_ranks = true},
    {.kind = OperationKind::reduce_scatter,
     .name = "reduce_scatter",
     .has_rows = true,
     .has_splits = true,
     .splits_agreed = true,
     .has_op = true},
    {.kind = OperationKind::barrier, .name = "barrier"},
    {.kind = OperationKind::create_process_set,
     .name = "create_process_set",
     .in_log_only = true,
     .needs_all_ranks = true},
    {.kind = OperationKind::remove_process_set,
     .name = "remove_process_set",
     .in_log_only = true,
     .needs_all_ranks = true},
    {.kind = OperationKind::join, .name = "join", .in_log_only = true},
};

constexpr bool has_a_row_for_each_operation() noexcept {
    std::size_t number = 0;
    for (const auto& row : operations)
        if (static_cast<std::size_t>(row.kind) != number++) return false;
    return number == static_cast<std::size_t>(last_of(OperationKind{})) + 1;
}
static_assert(has_a_row_for_each_operation(),
              "the table has one row for each OperationKind, in the order of their numbers");

constexpr const OperationRow& row_of(OperationKind operation) noexcept {
    return operations[static_cast<std::size_t>(operation)];
}
constexpr std::string_view name_of(OperationKind operation) noexcept {
    return row_of(operation).name;
}

/// Calls visit.operator()<kind>() with that kind as a constant.
template <class Visit>
void visit(OperationKind chosen, const Visit& visit) {
    [&]<std::size_t... n>(std::index_sequence<n...>) {
        const auto visit_if_chosen = [&]<OperationKind kind>() {
            if (kind == chosen) visit.template operator()<kind>();
        };
        (visit_if_chosen.template operator()<operations[n].kind>(), ...);
    }(std::make_index_sequence<std::size(operations)>());
}

}  // namespace guozhuang
