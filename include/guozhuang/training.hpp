#pragma once

#include <cstddef>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>

/// Helpers around a training loop. All are collective unless they say otherwise: every rank calls them, and those that are block until it has.
/// `session` null means Session::current(). Any thread, but each of them from one thread of a rank at a time. They throw Error(not_initialised)
/// without a session, and what the operations they consist of throw.
namespace guozhuang {

/// Copies root's parameter values over everybody's, so that all ranks start equal. Names, shapes and dtypes must be the same on all ranks, in any
/// order; after an error the parameters that it does not name hold root's values.
GUOZHUANG_API void broadcast_parameters(std::span<const Parameter> parameters, int root = 0, Session* session = nullptr);

/// Throws Error(mismatch) on every rank, naming the first tensor whose bits differ and on which ranks, unless all ranks hold the same values. Bits
/// are compared by a 64-bit hash. Host memory only.
GUOZHUANG_API void check_consistent(std::span<const Parameter> parameters, Session* session = nullptr);

/// The mean of each metric over the ranks. Every rank must pass the same keys, else Error(mismatch) on all, with the keys of each side.
GUOZHUANG_API std::map<std::string, double> average_metrics(const std::map<std::string, double>& metrics, Session* session = nullptr);

/// Scales the gradients so that their global 2-norm is at most `max_norm`; returns the norm before. Local: call it after synchronize(), when
/// all ranks hold the same gradients. f32 and f64 in host memory only.
GUOZHUANG_API double clip_by_global_norm(std::span<const Parameter> parameters, double max_norm);

/// The linear scaling rule (Goyal et al. 2017): rate * size. Local.
GUOZHUANG_API double scale_learning_rate(double rate, Session* session = nullptr);

/// Steps until the ranks together have seen `samples` samples, `batch` per rank and step, rounded up. Local. Throws
/// Error(invalid_argument) for a batch of 0.
GUOZHUANG_API std::size_t steps_per_epoch(std::size_t samples, std::size_t batch, Session* session = nullptr);

/// Prints a line to standard output on rank 0. Local.
GUOZHUANG_API void print_once(std::string_view line, Session* session = nullptr);

}  // namespace guozhuang
