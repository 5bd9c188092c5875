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
/// operation under the same name; the order in which a rank submits different operations is free.
/// Those without a name are matched by their order: the third unnamed broadcast of a rank meets the
/// third of the others, so name what ranks may submit in different orders. Each exists blocking and
/// as `_async`. In a set "rank r" and "size" below are places in it and its size, except for roots
/// and the peers of send and recv, which are ranks of the job.
///
/// Common to all: callable from any thread; tensors must be contiguous and must stay untouched and
/// alive until the operation is complete; zero elements are fine. What is only read may be const (a
/// ConstTensorView). Errors of the caller (Error: invalid_argument, duplicate_name,
/// not_initialised) are thrown at once, before anything is sent. Errors of the group (mismatch,
/// departed) are thrown by wait() on every rank, and the library goes on working.
namespace guozhuang {

/// What every operation takes.
struct Options {
    /// Identifies the operation on all ranks and in errors; up to 64 KiB, and it may not begin with
    /// #. Empty: numbered by the order of this rank's unnamed calls of that operation ("#3
    /// broadcast").
    std::string name = {};
    /// The user's stream that produces the tensor, for tensors on a device.
    std::optional<StreamRef> stream = {};
    /// Kept until the operation is complete: an owner of the memory, for callers that may drop it
    /// earlier.
    std::shared_ptr<void> keep_alive = {};
    /// The session whose job it is; null: Session::current(), or the process set's.
    Session* session = nullptr;
    ProcessSet process_set = {};  ///< who takes part; the same on all of them
    /// How long it may wait for ranks that have not submitted it. Then the job ends: all that is
    /// pending or comes later fails on every rank with Error(timeout), which says who has not. May
    /// differ on each rank. 0: as long as GUOZHUANG_STALL_ERROR_S says.
    std::chrono::milliseconds timeout = {};
};

/// What operations that reduce take. Op and scales must be the same on all ranks.
struct AllreduceOptions {
    std::string name = {};        ///< as in Options
    ReduceOp op = ReduceOp::sum;  ///< how contributions are combined; mind the default
    /// Contributions are multiplied by it first, in the tensor's own type; floating dtypes only.
    double prescale = 1;
    /// The full sum (or average) is multiplied by it; floating dtypes only.
    double postscale = 1;
    std::optional<StreamRef> stream = {};    ///< as in Options
    std::shared_ptr<void> keep_alive = {};   ///< as in Options
    Session* session = nullptr;              ///< as in Options
    ProcessSet process_set = {};             ///< as in Options
    std::chrono::milliseconds timeout = {};  ///< as in Options
};

/// Combines the tensor of all ranks, in place. Shape, dtype, op, scales and device must match. The
/// result is bitwise equal on all ranks.
GUOZHUANG_API void allreduce(const TensorView& tensor, const AllreduceOptions& options = {});
GUOZHUANG_API Handle allreduce_async(const TensorView& tensor,
                                     const AllreduceOptions& options = {});

/// The same for several tensors as one operation: executed together, or, on an error of any member,
/// not at all. Dtypes may differ.
GUOZHUANG_API void grouped_allreduce(std::span<const TensorView> tensors,
                                     const AllreduceOptions& options = {});
GUOZHUANG_API Handle grouped_allreduce_async(std::span<const TensorView> tensors,
                                             const AllreduceOptions& options = {});

/// Concatenates the ranks' tensors along dim 0, in rank order. Dim 0 may differ per rank (0
/// included), the other extents must match; at least one dimension. Result: [sum of rows, ...].
GUOZHUANG_API Result all_gather(const ConstTensorView& tensor, const Options& options = {});
GUOZHUANG_API ResultHandle all_gather_async(const ConstTensorView& tensor,
                                            const Options& options = {});

/// Copies root's tensor over everybody's, in place. Any dtype and shape, 0-dimensional too; root,
/// shape and dtype must match.
GUOZHUANG_API void broadcast(const TensorView& tensor, int root, const Options& options = {});
GUOZHUANG_API Handle broadcast_async(const TensorView& tensor, int root,
                                     const Options& options = {});

/// Sends `splits[r]` rows of dim 0 to rank r and receives from each rank what it sends here. Empty
/// splits: equal parts, dim 0 must then be divisible by the size. Their sum must be dim 0. Result:
/// [sum of received rows, ...], rows[r] from rank r.
GUOZHUANG_API Result all_to_all(const ConstTensorView& tensor,
                                std::span<const std::int64_t> splits = {},
                                const Options& options = {});
GUOZHUANG_API ResultHandle all_to_all_async(const ConstTensorView& tensor,
                                            std::span<const std::int64_t> splits = {},
                                            const Options& options = {});

/// Combines the tensor of all ranks and leaves rank r with its part of dim 0; the first dim0 % size
/// ranks get one row more. The input is not changed. Result: [own rows, ...].
GUOZHUANG_API Result reduce_scatter(const ConstTensorView& tensor,
                                    const AllreduceOptions& options = {});
GUOZHUANG_API ResultHandle reduce_scatter_async(const ConstTensorView& tensor,
                                                const AllreduceOptions& options = {});

/// The same for several tensors as one operation; results in the order of the tensors.
GUOZHUANG_API std::vector<Result> grouped_all_gather(std::span<const TensorView> tensors,
                                                     const Options& options = {});
GUOZHUANG_API ResultsHandle grouped_all_gather_async(std::span<const TensorView> tensors,
                                                     const Options& options = {});
GUOZHUANG_API std::vector<Result> grouped_reduce_scatter(std::span<const TensorView> tensors,
                                                         const AllreduceOptions& options = {});
GUOZHUANG_API ResultsHandle grouped_reduce_scatter_async(std::span<const TensorView> tensors,
                                                         const AllreduceOptions& options = {});

/// What send and recv take.
struct PointToPointOptions {
    /// Messages between two ranks match by tag, in order. With Open MPI any; an MPI that carries
    /// only smaller ones makes others an Error(invalid_argument).
    std::uint16_t tag = 0;
    std::shared_ptr<void> keep_alive = {};  ///< as in Options
    Session* session = nullptr;             ///< as in Options
    ProcessSet process_set = {};            ///< as in Options
    /// How long it may wait for its peer. Then the job ends with Error(timeout), as in Options.
    std::chrono::milliseconds timeout = {};
};

/// Point to point, rank to rank; to oneself too. Dtype and shape of both sides must match, else
/// both throw Error(mismatch). Host memory only. A send is complete only once its receiver has
/// come, however small it is: two ranks that both send() first, or one that sends to itself, wait
/// for ever. Use an _async form for one of the two.
GUOZHUANG_API void send(const ConstTensorView& tensor, int to,
                        const PointToPointOptions& options = {});
GUOZHUANG_API Handle send_async(const ConstTensorView& tensor, int to,
                                const PointToPointOptions& options = {});
GUOZHUANG_API void recv(const TensorView& tensor, int from,
                        const PointToPointOptions& options = {});
GUOZHUANG_API Handle recv_async(const TensorView& tensor, int from,
                                const PointToPointOptions& options = {});

/// Returns when every rank has called it. Says nothing about other operations that are still
/// pending.
GUOZHUANG_API void barrier(const Options& options = {});
GUOZHUANG_API Handle barrier_async(const Options& options = {});

/// What a join takes.
struct JoinOptions {
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< as in Options
};

/// For a rank that has no more data while others still have: it takes part in what they do, with
/// nothing of its own, until every rank has joined. Returns the rank that was the last to join,
/// whose state is the newest.
///
/// Operations that only some ranks submit are run for all, with those that have joined contributing
/// what changes nothing: 0 to a sum, 1 to a product, the lowest value to a max and so on; no rows
/// to all_gather. An average divides by the ranks that have submitted it. What needs every rank
/// fails on all that have submitted it with Error(departed), naming those that have joined: a
/// broadcast whose root has, all_to_all, the making and removing of process sets. send and recv
/// know nothing of joining.
///
/// What the rank has submitted before goes on as it is. Meanwhile it may submit nothing in this
/// process set: Error(invalid_argument). Other process sets are not concerned. If a rank leaves
/// instead of joining, the join fails with Error(departed) and all that have joined are active
/// again. Unnamed operations are numbered anew after a join.
GUOZHUANG_API int join(const JoinOptions& options = {});
GUOZHUANG_API JoinHandle join_async(const JoinOptions& options = {});

}  // namespace guozhuang
