#pragma once

#include <guozhuang/error.hpp>
#include <type_traits>

#include "collectives/concepts/operation_site.hpp"
#include "collectives/operations/all_gather.hpp"
#include "collectives/operations/all_to_all.hpp"
#include "collectives/operations/allreduce.hpp"
#include "collectives/operations/barrier.hpp"
#include "collectives/operations/broadcast.hpp"
#include "collectives/operations/reduce_scatter.hpp"

/// Every operation of the table, and the function that runs one.
namespace guozhuang {

/// Throws Error(internal) for an operation that only the log handles, and what the site throws.
template <OperationSite S>
void run(OperationKind operation, S& site) {
    visit(operation, [&]<OperationKind kind>() {
        constexpr bool has_no_file =
            std::is_null_pointer_v<std::remove_const_t<decltype(run_operation<kind>)>>;
        static_assert(has_no_file == row_of(kind).in_log_only,
                      "this header includes the file of each operation that backends run");
        if constexpr (has_no_file)
            throw Error(ErrorCode::internal, "an operation of the log has come to a backend");
        else
            run_operation<kind>(site);
    });
}

}  // namespace guozhuang
