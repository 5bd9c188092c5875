#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <guozhuang/types.hpp>
#include <memory>
#include <span>
#include <string>

#include "device/reduction.hpp"

namespace guozhuang::device {

class Stream;

/// Names a new communicator: one rank makes the id, and tells the others.
using NcclId = std::array<std::byte, 128>;

/// Whether NCCL's reduction gives the same results as the host's. It has no 16-bit integers and no
/// adasum, and its minimum and maximum of floats lose a NaN. An average is its sum, which the
/// caller divides and scales.
constexpr bool is_in_nccl(ReduceOp op, DType dtype) noexcept {
    if (op == ReduceOp::adasum || dtype == DType::i16 || dtype == DType::u16) return false;
    return !is_floating(dtype) || (op != ReduceOp::min && op != ReduceOp::max);
}

/// One rank's side of an NCCL communicator. Functions that move memory only enqueue; they are
/// called in group(), in the same order on all ranks. NCCL may work on a call in the background:
/// until is_ready() returns true, call nothing else, and enqueue no work that must come after the
/// call. One thread at a time. Throws Error(unavailable) in NCCL's words.
class NcclCommunicator {
public:
    /// Aborts enqueued work, which unblocks streams that wait for other ranks, unless is_ready()
    /// has said that all ranks have reached finalize().
    virtual ~NcclCommunicator() = default;

    /// Whether NCCL has done the last call, including connect(). Throws if NCCL has failed, even in
    /// the background.
    virtual bool is_ready() = 0;
    /// NCCL starts the calls made in `calls` when the group ends.
    virtual void group(const std::function<void()>& calls) = 0;

    /// Contiguous memory of whole elements, which is input and output. NCCL uses
    /// only op and dtype of a Reduction: the caller divides and scales.
    virtual void allreduce(Stream& stream, const Reduction& reduction,
                           std::span<std::byte> memory) = 0;
    /// `into` on every rank = `from` on the root, which may be the same memory.
    virtual void broadcast(Stream& stream, std::span<std::byte> into,
                           std::span<const std::byte> from, int root) = 0;
    /// `into` = the `from` of all ranks, each of the same size.
    virtual void all_gather(Stream& stream, std::span<std::byte> into,
                            std::span<const std::byte> from) = 0;
    /// `into` = this rank's block of the reduced `from`, which is cut into one block for each rank.
    virtual void reduce_scatter(Stream& stream, const Reduction& reduction,
                                std::span<std::byte> into, std::span<const std::byte> from) = 0;
    /// `into`, on the root alone, = `from` of all ranks, reduced.
    virtual void reduce(Stream& stream, const Reduction& reduction, std::span<std::byte> into,
                        std::span<const std::byte> from, int root) = 0;
    virtual void send(Stream& stream, std::span<const std::byte> from, int to) = 0;
    virtual void receive(Stream& stream, std::span<std::byte> into, int from) = 0;

    /// Begins the end, once all enqueued work is done on this rank. is_ready() once it is done on
    /// all ranks.
    virtual void finalize() = 0;
};

/// The NCCL of this process. Thread-safe.
class Nccl {
public:
    virtual ~Nccl() = default;
    /// "2.28.9 (/usr/lib/libnccl.so.2)"
    virtual std::string version() const = 0;
    virtual NcclId make_id() = 0;
    /// Begins to connect this many ranks, each with its own device; does not wait for them.
    virtual std::unique_ptr<NcclCommunicator> connect(const NcclId& id, int rank, int ranks,
                                                      int device) = 0;
};

}  // namespace guozhuang::device
