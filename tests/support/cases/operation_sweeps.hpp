#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/cases/operation_cases.hpp"

/// Every operation over dtypes, ops, sizes and roots: for ranks that are threads and for ranks that
/// are processes.
namespace guozhuang::test {

/// Nothing, one element, one for all ranks but one, one each, one more, and many: 4099 and the
/// largest.
std::vector<std::int64_t> counts_for(int ranks, std::int64_t largest);

/// Every dtype, op and count up to the largest: 100'003 is more than a segment of any kind. The
/// operations of one dtype and op are in flight together, so that they are fused.
RankCase allreduce_sweep(std::int64_t largest_count);

void allreduce_scales(Session& session, Report& report);

/// The same numbers repeatedly, in one segment and in several: always the same sums, bit for bit.
void repeated_allreduces(Session& session, Report& report);

/// Groups of mixed dtypes and sizes, empty tensors and 0-dimensional ones among them.
void grouped_allreduces(Session& session, Report& report);

/// Blocking and asynchronous.
void grouped_all_gathers(Session& session, Report& report);

void grouped_reduce_scatters(Session& session, Report& report);

void grouped_operations(Session& session, Report& report);

void broadcast_sweep(Session& session, Report& report);

/// Rank r brings (r + shift) % 3 rows, so that some bring none; then nobody brings any.
void all_gather_sweep(Session& session, Report& report);

/// Splits that differ for each pair, zeros among them; one rank that sends nothing.
void all_to_all_sweep(Session& session, Report& report);

void reduce_scatter_sweep(Session& session, Report& report);

/// Everybody to everybody, oneself too: several in flight between each pair, told apart by tag, the
/// receives in the opposite order.
void message_sweep(Session& session, Report& report);

/// Two messages of one tag arrive in the order in which they were sent.
void messages_in_order(Session& session, Report& report);

}  // namespace guozhuang::test
