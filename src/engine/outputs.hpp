#pragma once

#include <exception>

#include "engine/context.hpp"
#include "engine/pending.hpp"

/// Memory that callers give for results.
namespace guozhuang::engine {

/// Returns an error if an output has another number of rows than its result, or overlaps its input
/// without being in place; null if all fit, or there are none. Call it once the results are
/// described. The operation still runs to its end, for the other ranks, and fails on this rank
/// alone.
std::exception_ptr output_mismatch(const Pending& pending, const Context& context) noexcept;

/// Returns the outputs without those of the owner; their results allocate their own memory.
SharedTensors outputs_without(const SharedTensors& outputs, const OwnsTensors& owner);

}  // namespace guozhuang::engine
