#include "backends/host/host_backend.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "collectives/adasum/allreduce.hpp"
#include "collectives/direct/allreduce.hpp"
#include "collectives/direct/reduce_scatter.hpp"
#include "collectives/hierarchical/allreduce.hpp"
#include "collectives/pairwise/all_to_all.hpp"
#include "collectives/recursive/doubling_allreduce.hpp"
#include "collectives/ring/all_gather.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "collectives/staged/staged_all_gather.hpp"
#include "collectives/staged/staged_all_to_all.hpp"
#include "collectives/staged/staged_allreduce.hpp"
#include "collectives/staged/staged_broadcast.hpp"
#include "collectives/staged/staged_reduce_scatter.hpp"
#include "collectives/staged/symmetric_allreduce.hpp"
#include "collectives/tree/barrier.hpp"
#include "collectives/tree/broadcast.hpp"
#include "device/host/host_reduce.hpp"

namespace guozhuang::backends {
namespace {

using wire::GroupWire;
using wire::SharedMemoryGroup;

wire::Group host_by_host(wire::Group group, const topology::HostGrid& grid) {
    group.ranks = grid.host_by_host();
    group.group_rank = grid.ring_rank();
    return group;
}

/// Bytes of one row of dim 0.
std::size_t row_bytes(const TensorView& tensor) {
    return count_of(std::span(tensor.shape).subspan(1)) * size_of(tensor.dtype);
}

/// Of what other ranks have said: no rank has fewer than no rows, nor all together more bytes than
/// there can be.
void require_possible(std::span<const std::int64_t> rows, std::size_t row_bytes,
                      const wire::GroupWire& wire) {
    auto left = static_cast<std::int64_t>(std::numeric_limits<std::int64_t>::max() /
                                          std::max<std::size_t>(row_bytes, 1));
    for (std::size_t group_rank = 0; group_rank < rows.size(); ++group_rank) {
        if (rows[group_rank] >= 0 && rows[group_rank] <= left) {
            left -= rows[group_rank];
            continue;
        }
        const int rank = wire.world_rank(static_cast<int>(group_rank));
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} says that it has {} rows", rank, rows[group_rank]),
                    {.ranks = {rank}});
    }
}

/// Prepares a result of these rows from each rank and gives each rank's destination in it.
std::vector<std::span<std::byte>> lay_out(Result& result, const TensorView& like,
                                          std::span<const std::int64_t> rows) {
    const auto row = row_bytes(like);
    result.dtype = like.dtype;
    result.rows.assign(rows.begin(), rows.end());
    result.shape = like.shape;
    result.shape[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    result.bytes.resize(static_cast<std::size_t>(result.shape[0]) * row);
    std::vector<std::span<std::byte>> destinations;
    auto rest = std::span(result.bytes);
    for (const auto count : rows) {
        destinations.push_back(rest.first(static_cast<std::size_t>(count) * row));
        rest = rest.subspan(destinations.back().size());
    }
    return destinations;
}

/// The tensor cut along dim 0.
std::vector<std::span<const std::byte>> cut(std::span<const std::byte> memory, std::size_t row,
                                            std::span<const std::int64_t> rows) {
    std::vector<std::span<const std::byte>> slices;
    for (const auto count : rows) {
        slices.push_back(memory.first(static_cast<std::size_t>(count) * row));
        memory = memory.subspan(slices.back().size());
    }
    return slices;
}

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

void ScratchPool::Free::operator()(std::byte* memory) const noexcept {
    ::operator delete[](memory, std::align_val_t(scratch_alignment));
}

std::span<std::byte> ScratchPool::get(std::size_t bytes) {
    if (bytes > bytes_ || !memory_) {
        memory_.reset();
        bytes_ = 0;
        memory_.reset(
            static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(scratch_alignment))));
        bytes_ = bytes;
        // The pages are faulted in now, not in the middle of an operation.
        std::memset(memory_.get(), 0, bytes);
    }
    return {memory_.get(), bytes_};
}

ScratchPool ScratchStore::take() {
    const base::Lock lock(mutex_);
    if (pools_.empty()) return {};
    auto pool = std::move(pools_.back());
    pools_.pop_back();
    return pool;
}

void ScratchStore::give_back(ScratchPool pool) {
    const base::Lock lock(mutex_);
    pools_.push_back(std::move(pool));
}

HostBackend::HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store,
                         bool may_stage, std::shared_ptr<trace::Timeline> timeline)
    : wire_(group),
      group_(group),
      grid_(group.transport.topology().host_of, group.ranks, group.transport.rank()),
      ring_(host_by_host(group, grid_)),
      store_(std::move(store)),
      timeline_(std::move(timeline)) {
    needs_stages_ = may_stage && wire_.size() > 1 &&
                    (can_stage(group_.transport, group_.ranks) || Hierarchy::fits(group_));
    if (is_the_world(group_)) create_stages();
}

/// In the constructor, where all ranks are at the same point; or with the first bundle that moves
/// data, from which on they do the same in the same order.
void HostBackend::create_stages() {
    if (!std::exchange(needs_stages_, false)) return;
    set_buffers_ = SetStagingBuffers::create_shared(wire_, group_);
    if (!set_buffers_) return;
    if (can_stage(group_.transport, group_.ranks))
        tuner_.emplace(group_, set_buffers_->staging(), /*tries_segments=*/true);
    else
        hierarchy_.emplace(group_, set_buffers_->staging());
}

/// What all ranks agree on: the policy is the log's, and a device kind stages on every rank or on
/// none. On one host all sums are of the tree, so tensors on every kind of device get the same
/// bits, and so does a job without shared memory.
selection::Policy HostBackend::selection_policy(const protocol::Policy& policy) const {
    selection::Policy effective{.forced = policy.forced,
                                .reproducible = policy.reproducible || grid_.hosts() == 1,
                                .staging = uses_staging(policy),
                                .hierarchy = hierarchy_.has_value(),
                                .small_bytes = static_cast<std::size_t>(policy.small_bytes),
                                .segment_bytes = static_cast<std::size_t>(policy.segment_bytes)};
    if (effective.staging)
        effective.small_bytes = std::min(
            effective.small_bytes,
            direct::symmetric_limit_bytes(tuner_->group().stage(0).size(), tuner_->group().size()));
    return effective;
}

void HostBackend::run(const engine::Bundle& bundle) {
    scratch_ = store_->take();
    if (bundle.operation != protocol::OperationKind::barrier) create_stages();
    move(bundle);
    store_->give_back(std::move(scratch_));
}

void HostBackend::move(const engine::Bundle& bundle) {
    switch (bundle.operation) {
        case protocol::OperationKind::allreduce: allreduce(bundle); break;
        case protocol::OperationKind::broadcast: broadcast(bundle); break;
        case protocol::OperationKind::all_gather:
            for (const auto& entry : bundle.entries) all_gather(bundle.policy, entry);
            break;
        case protocol::OperationKind::all_to_all:
            for (const auto& entry : bundle.entries) all_to_all(bundle.policy, entry);
            break;
        case protocol::OperationKind::reduce_scatter:
            for (const auto& entry : bundle.entries) reduce_scatter(bundle, entry);
            break;
        case protocol::OperationKind::barrier: barrier(bundle.policy); break;
        case protocol::OperationKind::create_process_set:
        case protocol::OperationKind::remove_process_set:
        case protocol::OperationKind::join:
            throw Error(ErrorCode::internal, "a matter of the log has come to a backend");
    }
}

trace::TimelineFacts HostBackend::facts_of(std::string_view algorithm, const FusedTensors& fused) {
    return {.algorithm = algorithm, .bytes = fused.total_bytes, .tensors = fused.tensors.size()};
}

std::vector<HostBackend::FusedTensors> HostBackend::fused_tensors_of(
    const engine::Bundle& bundle) const {
    const auto effective = selection_policy(bundle.policy);
    std::vector<FusedTensors> all;
    for (const auto& entry : bundle.entries) {
        const auto memory = entry.tensor.memory();
        const bool small =
            selection::order_class_of(memory.size(), effective) == selection::OrderClass::tree;
        auto fused = std::find_if(all.begin(), all.end(), [&](const FusedTensors& p) {
            return p.dtype == entry.tensor.dtype && p.small == small;
        });
        if (fused == all.end())
            fused = all.insert(
                all.end(),
                FusedTensors{.dtype = entry.tensor.dtype, .small = small, .tensors = {}});
        fused->tensors.push_back(memory);
        fused->largest_bytes = std::max(fused->largest_bytes, memory.size());
        fused->total_bytes += memory.size();
    }
    return all;
}

void HostBackend::allreduce(const engine::Bundle& bundle) {
    for (const auto& fused : fused_tensors_of(bundle)) {
        if (bundle.prescale != 1)
            for (const auto& tensor : fused.tensors)
                device::scale(fused.dtype, tensor, bundle.prescale);
        bundle.op == ReduceOp::adasum ? adasum(bundle, fused) : allreduce(bundle, fused);
    }
}

void HostBackend::adasum(const engine::Bundle& bundle, const FusedTensors& fused) {
    const device::HostReduce reduce(fused.dtype, ReduceOp::sum, wire_.size(), bundle.postscale);
    const trace::TimelineSlice slice(*timeline_, "part", [&] { return facts_of("adasum", fused); });
    adasum::allreduce(wire_, {.tensors = fused.tensors,
                              .scratch = scratch_.get(adasum::allreduce_scratch_bytes<GroupWire>(
                                  fused.tensors, reduce, wire_.size())),
                              .reduce = reduce,
                              .pair = device::adasum_for(fused.dtype)});
}

void HostBackend::allreduce(const engine::Bundle& bundle, const FusedTensors& fused) {
    const auto ranks = wire_.size();
    const device::HostReduce reduce(fused.dtype, bundle.op, bundle.contributors, bundle.postscale);
    const auto [algorithm, segment_bytes] =
        selection::choose({.tensor_bytes = fused.largest_bytes,
                           .bundle_bytes = fused.total_bytes,
                           .ranks = ranks,
                           .policy = selection_policy(bundle.policy)});
    const trace::TimelineSlice slice(
        *timeline_, "part", [&, name = name_of(algorithm)] { return facts_of(name, fused); });
    if (algorithm == Algorithm::hierarchical)
        return hierarchical_allreduce(bundle, fused, segment_bytes);
    const auto args_for = [&](int blocks, auto&& scratch_bytes) -> AllreduceArgs {
        blocks_.assign(fused.tensors, reduce.element_bytes(), blocks);
        return {.blocks = blocks_,
                .scratch = scratch_.get(scratch_bytes()),
                .reduce = reduce,
                .segment_bytes = segment_bytes,
                .tensors = fused.tensors,
                .rest = &rest_};
    };
    const auto direct_scratch = [&] {
        return direct::allreduce_scratch_bytes<GroupWire>(blocks_, ranks, segment_bytes);
    };
    const auto staged = [&](auto&& move, int blocks) {
        auto args = args_for(blocks, [&] {
            return direct::staged_scratch_bytes<SharedMemoryGroup>(ranks, fused.tensors.size());
        });
        tuner_->run(bundle.operation, fused.total_bytes, segment_bytes,
                    [&](SharedMemoryGroup& group, std::size_t segment) {
                        args.segment_bytes = segment;
                        move(group, args);
                    });
    };
    switch (algorithm) {
        case Algorithm::symmetric: staged(direct::symmetric_allreduce<SharedMemoryGroup>, 1); break;
        case Algorithm::staged: staged(direct::staged_allreduce<SharedMemoryGroup>, ranks); break;
        case Algorithm::ring:
            ring::pipelined_allreduce(ring_, args_for(ranks, [&] {
                                          return ring::pipelined_scratch_bytes(blocks_,
                                                                               segment_bytes);
                                      }));
            break;
        case Algorithm::recursive_doubling:
            recursive::doubling_allreduce(wire_, args_for(1, [&] {
                                              return recursive::doubling_scratch_bytes<GroupWire>(
                                                  blocks_, reduce, ranks);
                                          }));
            break;
        case Algorithm::direct: direct::allreduce(wire_, args_for(ranks, direct_scratch)); break;
        case Algorithm::parameter_server:
            direct::allreduce(wire_, args_for(1, direct_scratch));
            break;
        default:
            throw Error(ErrorCode::internal, "the log names an algorithm that does no allreduce");
    }
}

void HostBackend::hierarchical_allreduce(const engine::Bundle& bundle, const FusedTensors& fused,
                                         std::size_t segment_bytes) {
    const device::HostReduce reduce(fused.dtype, bundle.op, bundle.contributors, bundle.postscale),
        within(fused.dtype, bundle.op, 1);
    auto& local = hierarchy_->local();
    auto& across = hierarchy_->across();
    blocks_.assign(fused.tensors, reduce.element_bytes(), wire_.size());
    local.run(bundle.operation, fused.total_bytes, segment_bytes,
              [&](SharedMemoryGroup& group, std::size_t segment) {
                  hierarchical::allreduce(
                      group, across,
                      {.blocks = blocks_,
                       .scratch = scratch_.get(
                           hierarchical::allreduce_scratch_bytes(group, across, blocks_, segment)),
                       .reduce = reduce,
                       .segment_bytes = segment},
                      within);
              });
}

void HostBackend::broadcast(const engine::Bundle& bundle) {
    std::vector<std::span<std::byte>> tensors;
    for (const auto& entry : bundle.entries) tensors.push_back(entry.tensor.memory());
    blocks_.assign(tensors, 1, 1);
    const auto segment_bytes = static_cast<std::size_t>(bundle.policy.segment_bytes);
    if (uses_staging(bundle.policy))
        return tuner_->run(bundle.operation, blocks_.total_bytes(), segment_bytes,
                           [&](SharedMemoryGroup& group, std::size_t segment) {
                               direct::staged_broadcast(group, blocks_, bundle.root, segment);
                           });
    tree::broadcast(wire_,
                    {.blocks = blocks_,
                     .scratch = scratch_.get(tree::broadcast_scratch_bytes(blocks_, segment_bytes)),
                     .segment_bytes = segment_bytes,
                     .root = bundle.root});
}

/// The log has made sure that all have come; this lets them leave together.
void HostBackend::barrier(const protocol::Policy& policy) {
    if (uses_staging(policy)) return direct::staged_barrier(tuner_->group());
    tree::barrier(wire_, scratch_.get(tree::barrier_scratch_bytes));
}

/// destinations[r] is for what rank r has; this rank's is filled.
void HostBackend::gather(const protocol::Policy& policy,
                         std::span<const std::span<std::byte>> destinations) {
    if (uses_staging(policy)) {
        std::size_t bytes = 0;
        for (const auto destination : destinations) bytes += destination.size();
        return tuner_->run(protocol::OperationKind::all_gather, bytes,
                           static_cast<std::size_t>(policy.segment_bytes),
                           [&](SharedMemoryGroup& group, std::size_t segment) {
                               direct::staged_all_gather(group, destinations, segment);
                           });
    }
    std::vector<std::span<std::byte>> around;
    for (const int rank : grid_.host_by_host()) {
        // The group's ranks ascend.
        const auto group_rank = std::ranges::lower_bound(group_.ranks, rank) - group_.ranks.begin();
        around.push_back(destinations[static_cast<std::size_t>(group_rank)]);
    }
    ring::all_gather(ring_, around);
}

/// The numbers of rows first, because they are in no description; then the rows.
void HostBackend::all_gather(const protocol::Policy& policy, const engine::BundleEntry& entry) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(wire_.size()));
    const auto self = static_cast<std::size_t>(wire_.rank());
    rows[self] = entry.tensor.shape[0];
    std::vector<std::span<std::byte>> counts;
    for (auto& count : rows) counts.push_back(std::as_writable_bytes(std::span(&count, 1)));
    gather(policy, counts);
    require_possible(rows, row_bytes(entry.tensor), wire_);
    const auto destinations = lay_out(*entry.result, entry.tensor, rows);
    copy(destinations[self], entry.tensor.memory());
    gather(policy, destinations);
}

/// sources[r] goes to rank r, what comes from there to destinations[r]; `longest_bytes` is the
/// longest that any rank gives any other.
void HostBackend::exchange(const protocol::Policy& policy,
                           std::span<const std::span<const std::byte>> sources,
                           std::span<const std::span<std::byte>> destinations,
                           std::size_t longest_bytes) {
    if (!uses_staging(policy)) return pairwise::all_to_all(wire_, sources, destinations);
    tuner_->run(protocol::OperationKind::all_to_all, longest_bytes * destinations.size(),
                static_cast<std::size_t>(policy.segment_bytes),
                [&](SharedMemoryGroup& group, std::size_t segment) {
                    direct::staged_all_to_all(group, sources, destinations, longest_bytes, segment);
                });
}

/// The same as with all_gather.
void HostBackend::all_to_all(const protocol::Policy& policy, const engine::BundleEntry& entry) {
    struct Split {
        std::int64_t rows = 0, longest = 0;  ///< for the other; of all that this rank gives
    };
    const auto longest = std::ranges::max(entry.splits);
    std::vector<Split> told, heard(entry.splits.size());
    for (const auto split : entry.splits) told.push_back({split, longest});
    std::vector<std::span<const std::byte>> told_bytes;
    std::vector<std::span<std::byte>> heard_bytes;
    for (auto& split : told) told_bytes.push_back(std::as_bytes(std::span(&split, 1)));
    for (auto& split : heard) heard_bytes.push_back(std::as_writable_bytes(std::span(&split, 1)));
    exchange(policy, told_bytes, heard_bytes, sizeof(Split));

    std::vector<std::int64_t> rows, longest_of_each;
    for (const auto& split : heard) {
        rows.push_back(split.rows);
        longest_of_each.push_back(split.longest);
    }
    const auto row = row_bytes(entry.tensor);
    require_possible(rows, row, wire_);
    require_possible(longest_of_each, row, wire_);
    const auto destinations = lay_out(*entry.result, entry.tensor, rows);
    exchange(policy, cut(entry.tensor.memory(), row, entry.splits), destinations,
             static_cast<std::size_t>(std::ranges::max(longest_of_each)) * row);
}

void HostBackend::reduce_scatter(const engine::Bundle& bundle, const engine::BundleEntry& entry) {
    const auto ranks = wire_.size();
    const auto& tensor = entry.tensor;
    const device::HostReduce reduce(tensor.dtype, bundle.op, bundle.contributors, bundle.postscale);
    const auto segment_bytes = selection::direct_segment_bytes(
        ranks, static_cast<std::size_t>(bundle.policy.segment_bytes));
    std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks), tensor.shape[0] / ranks);
    for (auto& row : std::span(rows).first(static_cast<std::size_t>(tensor.shape[0] % ranks)))
        ++row;

    const std::span<const std::byte> given = tensor.memory();
    const bool scales = bundle.prescale != 1;
    auto blocks = cut(given, row_bytes(tensor), rows);
    const bool staged = uses_staging(bundle.policy);
    const auto scratch_bytes =
        staged ? direct::stage_scratch_bytes(ranks)
               : direct::reduce_scatter_scratch_bytes<GroupWire>(blocks, segment_bytes);
    Scratch scratch(scratch_.get(padded(scratch_bytes) + (scales ? padded(given.size()) : 0)));
    const auto working = scratch.cut(scratch_bytes);
    if (scales) {  // a copy: the caller's input stays as it is
        const auto scaled = scratch.cut(given.size());
        copy(scaled, given);
        device::scale(tensor.dtype, scaled, bundle.prescale);
        blocks = cut(scaled, row_bytes(tensor), rows);
    }
    const auto own = std::span(rows).subspan(static_cast<std::size_t>(wire_.rank()), 1);
    const auto destination = lay_out(*entry.result, tensor, own);
    direct::ReduceScatterArgs args{.input = blocks,
                                   .output = destination.front(),
                                   .scratch = working,
                                   .reduce = reduce,
                                   .segment_bytes = segment_bytes};
    if (!staged) return direct::reduce_scatter(wire_, args);
    tuner_->run(bundle.operation, given.size(), segment_bytes,
                [&](SharedMemoryGroup& group, std::size_t segment) {
                    args.segment_bytes = segment;
                    direct::staged_reduce_scatter(group, args);
                });
}

}  // namespace guozhuang::backends
