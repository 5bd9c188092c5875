#pragma once

#include <cstdint>
#include <functional>
#include <guozhuang/handle.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <span>
#include <vector>

#include "collectives/policy.hpp"
#include "device/device.hpp"
#include "protocol/description.hpp"

namespace guozhuang::engine {

/// One tensor of a bundle, on this rank.
struct BundleEntry {
    const TensorView& tensor;                   ///< the input; in place the output too
    std::span<const std::int64_t> splits = {};  ///< rows for each rank; reduce_scatter: or none
    /// Filled by all_gather, all_to_all and reduce_scatter; null for the others.
    Result* result = nullptr;
    /// Receives the result's elements if they fit; otherwise the result allocates its own memory. A
    /// wrong size does not fail the bundle, because the other ranks need this one.
    std::span<std::byte> output = {};
};

/// The tensors that one entry of the log moves together. Every rank of the set runs the same
/// bundle, with the same entries in the same order.
struct Bundle {
    /// The operation, and its options. Outlives the bundle.
    const protocol::Description* description = nullptr;
    int root = 0;  ///< group rank
    /// Divisor of an average: the number of ranks that have not joined.
    int contributors = 1;
    selection::Policy policy;
    /// The only entry's tensors of all ranks, by group rank, if the log has brought them.
    std::span<const std::byte> contributions = {};
    std::vector<BundleEntry> entries;
};

/// Runs bundles of host tensors: combines algorithms and a wire. Only the thread that drives the
/// engine calls run().
class Backend {
public:
    virtual ~Backend() = default;
    /// Blocks until the results are in place. Throws Error if the job is aborted or the transport
    /// fails; the contents of the bundle's tensors are then undefined.
    virtual void run(const Bundle& bundle) = 0;

    /// Runs an allreduce of one tensor before the ranks have agreed on it, if all ranks of the set
    /// ask for it at about the same time, with equal fingerprints of its name and description. If
    /// one does not, returns false on all ranks and leaves the tensor untouched. Called like run(),
    /// and throws the same.
    virtual bool run_eagerly(const Bundle&, std::uint64_t /*fingerprint*/) { return false; }
    /// This rank waits for something else: others need not wait for it in run_eagerly().
    virtual void decline_eager() noexcept {}
};

/// A bundle of tensors on a device, from its enqueueing until its stream has finished it.
class StreamBundle {
public:
    virtual ~StreamBundle() = default;
    virtual const Bundle& bundle() const noexcept = 0;
    /// Does host work for the bundle on the calling thread. If `work` throws, the bundle has
    /// failed: its handles fail at once, the job ends for the other ranks, and this returns false.
    virtual bool attempt(const std::function<void()>& work) noexcept = 0;
    /// If this rank has joined, allocates and fills what it contributes. Allocating may wait for
    /// the device, so call it in the bundle's turn. Throws what the driver throws.
    virtual void make_contributions(const std::shared_ptr<device::Driver>& driver,
                                    device::Stream& stream) = 0;
};

/// Moves bundles of tensors on a device, as work on a stream.
class StreamBackend {
public:
    virtual ~StreamBackend() = default;
    /// Enqueues all device work of the bundle and does not wait for it. Backend threads that work
    /// on the bundle later make no device calls, so a program's call that waits for the device
    /// cannot block them. Called by the thread that drives, in the order of the log. Throws Error
    /// if the job is aborted or the device refuses.
    virtual void enqueue(std::shared_ptr<StreamBundle> bundle, device::Stream& stream) = 0;
    /// The job is over: unblocks every stream that waits for this rank or another, now or later,
    /// although the results are undefined. Makes no device calls. Called repeatedly until the
    /// streams have finished. Any thread.
    virtual void release() noexcept = 0;
    /// Whether a rank of the set may have unblocked its streams in a way that other ranks' streams
    /// take for data: then no bundle is known to have ended well. Any thread.
    virtual bool was_released() const noexcept = 0;
    /// Ends the threads of the backend, which is not used again: its bundles have ended, or the job
    /// has been aborted. The stream may still use its memory.
    virtual void stop() noexcept = 0;
};

}  // namespace guozhuang::engine
