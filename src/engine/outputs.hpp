#pragma once

#include <exception>

#include "engine/context.hpp"
#include "engine/pending.hpp"

/// Memory that callers give for results.
namespace guozhuang::engine {

/// The error of an operation one of whose outputs has other rows than its result, as soon as the
/// results are described; null if all fit, or there are none. Such an operation runs to its end,
/// for the other ranks, and fails on this rank alone.
std::exception_ptr misfit_of(const Pending& pending, const Context& context) noexcept;

/// The outputs, those of the owner forgotten: their results go to memory of the results' own.
SharedTensors outputs_without(const SharedTensors& outputs, const OwnsTensors& owner);

}  // namespace guozhuang::engine
