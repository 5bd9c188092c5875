#pragma once

#include <algorithm>
#include <array>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/cases/operation_cases.hpp"

/// Memory whose owner is destroyed while operations use it, as when an exception leaves the
/// training loop.
namespace guozhuang::test {

/// Makes the last rank late: rank 0 calls this after its memory's owner is gone, and the last rank
/// before it submits.
void last_rank_after_rank0(Session& session);

bool all_are(std::span<const float> numbers, float expected);

/// The mean of what the ranks contribute: each its number, from 1.
float mean_of_ranks(Session& session);

/// Rank 0 throws in its backward pass; its gradients' memory gets another use, while the last rank
/// has not submitted them yet.
void exception_in_backward(Session& session, Report& report, std::size_t count, DeviceKind device);

void exceptions_in_backward(Session& session, Report& report);

/// Rank 0's arena goes before the last rank has submitted; so does what rank 0 sends from there and
/// receives to it.
void arena_gone_in_flight(Session& session, Report& report);

/// Registrations may end in the middle of operations, which go on and are right.
void registration_ended_in_flight(Session& session, Report& report);

inline const RankCase all_unwinding_cases[] = {exceptions_in_backward, arena_gone_in_flight,
                                               registration_ended_in_flight};

}  // namespace guozhuang::test
