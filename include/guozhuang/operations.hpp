#pragma once

#include <chrono>
#include <cstdint>
#include <guozhuang/handle.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// The collectives. Every rank of the job, or of the process set in the options, submits the same
/// operation under the same name; a rank may submit different operations in any order. Operations
/// without a name are matched by their order: a rank's third unnamed broadcast with the third of
/// the others. So name operations that ranks may submit in different orders. Each operation exists
/// blocking and as `_async`. In a set, "rank r" and "size" below count within the set; only roots,
/// and the peers of send and recv, are ranks of the job.
///
/// All can be called on any thread. Tensors must be contiguous, and must stay alive and untouched
/// until the operation is complete; they may have zero elements. An input may be const
/// (ConstTensorView). Errors of the caller (Error: invalid_argument, duplicate_name,
/// not_initialised) are thrown at once, before anything is sent. Errors of the group (mismatch,
/// departed) are thrown by wait() on every rank, and the library goes on working.
namespace guozhuang {

/// Options of every operation.
struct Options {
    /// Identifies the operation on all ranks and in errors. Up to 64 KiB; must not begin with #.
    /// Empty: made from the number of this rank's unnamed calls of that operation ("#3 broadcast").
    std::string name = {};
    /// The user's stream that produces the tensor, for tensors on a device.
    std::optional<StreamRef> stream = {};
    /// The caller's memory for the results, one output for each tensor; empty: the library
    /// allocates them. For all_gather, all_to_all and reduce_scatter; other operations refuse
    /// outputs. An output has the dtype, device and shape of its result. Like the tensors, it must
    /// stay alive and untouched until the operation is complete.
    ///
    /// In place: the input of all_gather may be this rank's own block of its output, and the output
    /// of reduce_scatter this rank's own block of its input, exactly. Inputs and outputs must not
    /// overlap otherwise.
    ///
    /// Only the operation itself finds out how many rows all_gather and all_to_all return. If an
    /// output has another number of rows, or contains the input other than as this rank's own
    /// block, wait() throws Error(invalid_argument) on this rank alone, and the contents of the
    /// outputs are undefined.
    std::vector<TensorView> outputs = {};
    /// Kept until the operation is complete: an owner of the memory, for callers that may drop it
    /// earlier. Released on any thread, including the library's own. Its destructor may free device
    /// memory, and may submit operations and wait for them. If the tensor was on a device, waiting
    /// there for a device operation throws Error(invalid_argument).
    std::shared_ptr<void> keep_alive = {};
    /// The session whose ranks take part; null: Session::current(), or the process set's.
    Session* session = nullptr;
    ProcessSet process_set = {};  ///< whose ranks take part; the same on all of them
    /// How long the operation may wait for ranks that have not submitted it. Then the job ends:
    /// every pending and later operation fails on every rank with Error(timeout), which names these
    /// ranks. May differ from rank to rank. 0: as GUOZHUANG_STALL_ERROR_S says. A small blocking
    /// allreduce is faster without one.
    std::chrono::milliseconds timeout = {};
};

/// Options of reductions. Op and scales must be the same on all ranks.
struct AllreduceOptions {
    std::string name = {};        ///< as in Options
    ReduceOp op = ReduceOp::sum;  ///< combines contributions; mind the default
    /// Contributions are first multiplied by this, in the tensor's own type. Floating dtypes only.
    double prescale = 1;
    /// The full sum (or average) is multiplied by this. Floating dtypes only.
    double postscale = 1;
    std::optional<StreamRef> stream = {};  ///< as in Options
    std::vector<TensorView> outputs = {};  ///< as in Options, for reduce_scatter
    /// For reduce_scatter: rank r gets `splits[r]` rows of dim 0. They must add up to dim 0 and be
    /// the same on all ranks. Empty: equal parts. Other operations, and groups, refuse splits.
    std::vector<std::int64_t> splits = {};
    std::shared_ptr<void> keep_alive = {};   ///< as in Options
    Session* session = nullptr;              ///< as in Options
    ProcessSet process_set = {};             ///< as in Options
    std::chrono::milliseconds timeout = {};  ///< as in Options
};

/// Combines the tensors of all ranks, in place. Shape, dtype, op, scales and device must match. The
/// result is the same on all ranks, bit for bit.
GUOZHUANG_API void allreduce(const TensorView& tensor, const AllreduceOptions& options = {});
GUOZHUANG_API Handle allreduce_async(const TensorView& tensor,
                                     const AllreduceOptions& options = {});

/// The same for several tensors as one operation: all are executed together or, after an error in
/// any of them, none. Dtypes may differ.
GUOZHUANG_API void grouped_allreduce(std::span<const TensorView> tensors,
                                     const AllreduceOptions& options = {});
GUOZHUANG_API Handle grouped_allreduce_async(std::span<const TensorView> tensors,
                                             const AllreduceOptions& options = {});

/// Concatenates the ranks' tensors along dim 0, in rank order. They need at least one dimension;
/// dim 0 may differ from rank to rank (0 too), the other extents must match. Result: [sum of rows,
/// ...].
GUOZHUANG_API Result all_gather(const ConstTensorView& tensor, const Options& options = {});
GUOZHUANG_API ResultHandle all_gather_async(const ConstTensorView& tensor,
                                            const Options& options = {});

/// Copies root's tensor to the tensors of all other ranks, in place. Any dtype and shape,
/// 0-dimensional too. Root, shape and dtype must match.
GUOZHUANG_API void broadcast(const TensorView& tensor, int root, const Options& options = {});
GUOZHUANG_API Handle broadcast_async(const TensorView& tensor, int root,
                                     const Options& options = {});

/// Sends `splits[r]` rows of dim 0 to rank r, and receives from each rank the rows that it sends to
/// this one. The splits must add up to dim 0. Empty splits: equal parts; dim 0 must then be
/// divisible by the size. Result: [sum of received rows, ...], rows[r] from rank r.
GUOZHUANG_API Result all_to_all(const ConstTensorView& tensor,
                                std::span<const std::int64_t> splits = {},
                                const Options& options = {});
GUOZHUANG_API ResultHandle all_to_all_async(const ConstTensorView& tensor,
                                            std::span<const std::int64_t> splits = {},
                                            const Options& options = {});

/// Combines the tensors of all ranks; rank r gets its part of dim 0. The first dim0 % size ranks
/// get one row more, unless options.splits says how many rows each gets. The input is not changed,
/// except by an output in it. Result: [own rows, ...].
GUOZHUANG_API Result reduce_scatter(const ConstTensorView& tensor,
                                    const AllreduceOptions& options = {});
GUOZHUANG_API ResultHandle reduce_scatter_async(const ConstTensorView& tensor,
                                                const AllreduceOptions& options = {});

/// The same for several tensors as one operation, with results in the order of the tensors.
GUOZHUANG_API std::vector<Result> grouped_all_gather(std::span<const TensorView> tensors,
                                                     const Options& options = {});
GUOZHUANG_API ResultsHandle grouped_all_gather_async(std::span<const TensorView> tensors,
                                                     const Options& options = {});
GUOZHUANG_API std::vector<Result> grouped_reduce_scatter(std::span<const TensorView> tensors,
                                                         const AllreduceOptions& options = {});
GUOZHUANG_API ResultsHandle grouped_reduce_scatter_async(std::span<const TensorView> tensors,
                                                         const AllreduceOptions& options = {});

/// Options of send and recv.
struct PointToPointOptions {
    /// Messages between two ranks match by tag, in order. Open MPI carries every tag; with an MPI
    /// that carries only smaller tags, larger ones throw Error(invalid_argument).
    std::uint16_t tag = 0;
    std::optional<StreamRef> stream = {};   ///< of this side's tensor, as in Options
    std::shared_ptr<void> keep_alive = {};  ///< as in Options
    Session* session = nullptr;             ///< as in Options
    ProcessSet process_set = {};            ///< as in Options
    /// How long this may wait for its peer. Then the job ends with Error(timeout), as in Options.
    std::chrono::milliseconds timeout = {};
};

/// Sends from one rank to another, or to itself. Dtype and shape must match on both sides,
/// otherwise both throw Error(mismatch); devices may differ. Even a small send completes only when
/// the receiver has called recv: two ranks that both send() first, or a rank that sends to itself,
/// wait for ever. Use the _async form on one side. For a receive on a device, `wait(stream)` waits
/// until the message has arrived on the host, and orders later work on the stream behind the copy
/// to the device: no stream waits for a message.
GUOZHUANG_API void send(const ConstTensorView& tensor, int to,
                        const PointToPointOptions& options = {});
GUOZHUANG_API Handle send_async(const ConstTensorView& tensor, int to,
                                const PointToPointOptions& options = {});
GUOZHUANG_API void recv(const TensorView& tensor, int from,
                        const PointToPointOptions& options = {});
GUOZHUANG_API Handle recv_async(const TensorView& tensor, int from,
                                const PointToPointOptions& options = {});

/// Returns when every rank has called it. Does not wait for other pending operations.
GUOZHUANG_API void barrier(const Options& options = {});
GUOZHUANG_API Handle barrier_async(const Options& options = {});

/// Options of a join.
struct JoinOptions {
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< as in Options
};

/// For a rank that has no more data while others still have some. Until every rank has joined, it
/// contributes neutral values to the others' operations. Returns the last rank to join, whose state
/// is the newest.
///
/// Operations that only the other ranks submit run on all. Joined ranks contribute values that
/// change no result: 0 to a sum, 1 to a product, the lowest value to a max and so on; no rows to
/// all_gather. An average divides by the number of ranks that have submitted it. An operation that
/// needs every rank fails on all that have submitted it with Error(departed), which names the
/// joined ranks: a broadcast whose root has joined, all_to_all, creating and removing a process
/// set. send and recv do not change.
///
/// Operations that the rank submitted earlier go on. Until the join is complete it may submit
/// nothing in this process set (Error(invalid_argument)); other process sets are not affected. If a
/// rank shuts down instead of joining, the join fails with Error(departed) and all joined ranks are
/// active again. Unnamed operations are numbered from 1 again after a join.
GUOZHUANG_API int join(const JoinOptions& options = {});
GUOZHUANG_API JoinHandle join_async(const JoinOptions& options = {});

namespace detail {
/// Makes the next asynchronous collective that this thread submits wait for up to `limit` before it
/// returns, as Handle::wait_for() right after it would, but without waking the library's own
/// thread. For bindings to interpreters, whose blocking calls wait in steps.
GUOZHUANG_API void wait_first(std::chrono::microseconds limit) noexcept;
}  // namespace detail

}  // namespace guozhuang
