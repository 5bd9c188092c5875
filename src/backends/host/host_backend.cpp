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

using wire::MemberPeers;
using wire::MemberWire;

wire::Group host_by_host(wire::Group group, const topology::HostGrid& grid) {
    group.members = grid.host_by_host();
    group.position = grid.ring_rank();
    return group;
}

/// Bytes of one row of dim 0.
std::size_t row_bytes(const TensorView& tensor) {
    return count_of(std::span(tensor.shape).subspan(1)) * size_of(tensor.dtype);
}

/// Of what other ranks have said: no rank has fewer than no rows, nor all together more bytes than
/// there can be.
void require_possible(std::span<const std::int64_t> rows, std::size_t row_bytes,
                      const wire::MemberWire& wire) {
    auto left = static_cast<std::int64_t>(std::numeric_limits<std::int64_t>::max() /
                                          std::max<std::size_t>(row_bytes, 1));
    for (std::size_t position = 0; position < rows.size(); ++position) {
        if (rows[position] >= 0 && rows[position] <= left) {
            left -= rows[position];
            continue;
        }
        const int rank = wire.world_rank(static_cast<int>(position));
        throw Error(ErrorCode::wire,
                    fmt::format("rank {} says that it has {} rows", rank, rows[position]),
                    {.ranks = {rank}});
    }
}

/// Prepares a result of these rows from each rank and gives each rank's place in it.
std::vector<std::span<std::byte>> lay_out(Result& result, const TensorView& like,
                                          std::span<const std::int64_t> rows) {
    const auto row = row_bytes(like);
    result.dtype = like.dtype;
    result.rows.assign(rows.begin(), rows.end());
    result.shape = like.shape;
    result.shape[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    result.bytes.resize(static_cast<std::size_t>(result.shape[0]) * row);
    std::vector<std::span<std::byte>> places;
    auto rest = std::span(result.bytes);
    for (const auto count : rows) {
        places.push_back(rest.first(static_cast<std::size_t>(count) * row));
        rest = rest.subspan(places.back().size());
    }
    return places;
}

/// The tensor cut along dim 0.
std::vector<std::span<const std::byte>> cut(std::span<const std::byte> memory, std::size_t row,
                                            std::span<const std::int64_t> rows) {
    std::vector<std::span<const std::byte>> parts;
    for (const auto count : rows) {
        parts.push_back(memory.first(static_cast<std::size_t>(count) * row));
        memory = memory.subspan(parts.back().size());
    }
    return parts;
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

HostBackend::HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store, bool stages,
                         std::shared_ptr<trace::Timeline> timeline)
    : wire_(group),
      group_(group),
      grid_(group.transport.topology().host_of, group.members, group.transport.rank()),
      ring_(host_by_host(group, grid_)),
      store_(std::move(store)),
      timeline_(std::move(timeline)) {
    meets_ = stages && wire_.size() > 1 &&
             (can_stage(group_.transport, group_.members) || Levels::suit(group_));
    if (is_the_world(group_)) meet();
}

/// In the constructor, where all ranks are at the same point; or with the first bundle that moves
/// data, from which on they do the same in the same order.
void HostBackend::meet() {
    if (!std::exchange(meets_, false)) return;
    set_stages_ = SetStages::meet(wire_, group_);
    if (!set_stages_) return;
    if (can_stage(group_.transport, group_.members))
        stages_.emplace(group_, set_stages_->staging(), /*tries_segments=*/true);
    else
        levels_.emplace(group_, set_stages_->staging());
}

/// What all ranks agree on: the policy is the log's, and a device kind stages on every rank or on
/// none. On one host all sums are of the tree, so tensors on every kind of device get the same
/// bits, and so does a job without shared memory.
selection::Settings HostBackend::settings_of(const protocol::Policy& policy) const {
    selection::Settings settings{.forced = policy.forced,
                                 .reproducible = policy.reproducible || grid_.hosts() == 1,
                                 .staging = stages(policy),
                                 .hierarchy = levels_.has_value(),
                                 .small_bytes = static_cast<std::size_t>(policy.small_bytes),
                                 .segment_bytes = static_cast<std::size_t>(policy.segment_bytes)};
    if (settings.staging)
        settings.small_bytes = std::min(
            settings.small_bytes, direct::symmetric_limit_bytes(stages_->peers().stage(0).size(),
                                                                stages_->peers().size()));
    return settings;
}

void HostBackend::run(const engine::Bundle& bundle) {
    scratch_ = store_->take();
    if (bundle.operation != protocol::OperationKind::barrier) meet();
    move(bundle);
    store_->give_back(std::move(scratch_));
}

void HostBackend::move(const engine::Bundle& bundle) {
    switch (bundle.operation) {
        case protocol::OperationKind::allreduce: allreduce(bundle); break;
        case protocol::OperationKind::broadcast: broadcast(bundle); break;
        case protocol::OperationKind::all_gather:
            for (const auto& piece : bundle.pieces) all_gather(bundle.policy, piece);
            break;
        case protocol::OperationKind::all_to_all:
            for (const auto& piece : bundle.pieces) all_to_all(bundle.policy, piece);
            break;
        case protocol::OperationKind::reduce_scatter:
            for (const auto& piece : bundle.pieces) reduce_scatter(bundle, piece);
            break;
        case protocol::OperationKind::barrier: barrier(bundle.policy); break;
        case protocol::OperationKind::create_process_set:
        case protocol::OperationKind::remove_process_set:
        case protocol::OperationKind::join:
            throw Error(ErrorCode::internal, "a matter of the log has come to a backend");
    }
}

trace::TimelineFacts HostBackend::facts_of(std::string_view algorithm, const Part& part) {
    return {.algorithm = algorithm, .bytes = part.total_bytes, .tensors = part.members.size()};
}

std::vector<HostBackend::Part> HostBackend::parts_of(const engine::Bundle& bundle) const {
    const auto settings = settings_of(bundle.policy);
    std::vector<Part> parts;
    for (const auto& piece : bundle.pieces) {
        const auto memory = piece.tensor.memory();
        const bool small =
            selection::order_class_of(memory.size(), settings) == selection::OrderClass::tree;
        auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
            return p.dtype == piece.tensor.dtype && p.small == small;
        });
        if (part == parts.end())
            part = parts.insert(parts.end(),
                                Part{.dtype = piece.tensor.dtype, .small = small, .members = {}});
        part->members.push_back(memory);
        part->largest_bytes = std::max(part->largest_bytes, memory.size());
        part->total_bytes += memory.size();
    }
    return parts;
}

void HostBackend::allreduce(const engine::Bundle& bundle) {
    for (const auto& part : parts_of(bundle)) {
        if (bundle.prescale != 1)
            for (const auto& member : part.members)
                device::scale(part.dtype, member, bundle.prescale);
        bundle.op == ReduceOp::adasum ? adasum(bundle, part) : allreduce(bundle, part);
    }
}

void HostBackend::adasum(const engine::Bundle& bundle, const Part& part) {
    const device::HostReduce reduce(part.dtype, ReduceOp::sum, wire_.size(), bundle.postscale);
    const trace::TimelineSlice slice(*timeline_, "part", [&] { return facts_of("adasum", part); });
    adasum::allreduce(wire_, {.tensors = part.members,
                              .scratch = scratch_.get(adasum::allreduce_scratch_bytes<MemberWire>(
                                  part.members, reduce, wire_.size())),
                              .reduce = reduce,
                              .pair = device::adasum_for(part.dtype)});
}

void HostBackend::allreduce(const engine::Bundle& bundle, const Part& part) {
    const auto ranks = wire_.size();
    const device::HostReduce reduce(part.dtype, bundle.op, bundle.contributors, bundle.postscale);
    const auto [algorithm, segment_bytes] =
        selection::choose({.tensor_bytes = part.largest_bytes,
                           .bundle_bytes = part.total_bytes,
                           .ranks = ranks,
                           .settings = settings_of(bundle.policy)});
    const trace::TimelineSlice slice(
        *timeline_, "part", [&, name = name_of(algorithm)] { return facts_of(name, part); });
    if (algorithm == Algorithm::hierarchical)
        return allreduce_by_levels(bundle, part, segment_bytes);
    const auto plan = [&](int blocks, auto&& scratch_bytes) -> AllreducePlan {
        blocks_.assign(part.members, reduce.element_bytes(), blocks);
        return {.blocks = blocks_,
                .scratch = scratch_.get(scratch_bytes()),
                .reduce = reduce,
                .segment_bytes = segment_bytes,
                .members = part.members,
                .rest = &rest_};
    };
    const auto direct_scratch = [&] {
        return direct::allreduce_scratch_bytes<MemberWire>(blocks_, ranks, segment_bytes);
    };
    const auto staged = [&](auto&& move, int blocks) {
        auto arguments = plan(blocks, [&] {
            return direct::staged_scratch_bytes<MemberPeers>(ranks, part.members.size());
        });
        stages_->run(bundle.operation, part.total_bytes, segment_bytes,
                     [&](MemberPeers& peers, std::size_t segment) {
                         arguments.segment_bytes = segment;
                         move(peers, arguments);
                     });
    };
    switch (algorithm) {
        case Algorithm::symmetric: staged(direct::symmetric_allreduce<MemberPeers>, 1); break;
        case Algorithm::staged: staged(direct::staged_allreduce<MemberPeers>, ranks); break;
        case Algorithm::ring:
            ring::pipelined_allreduce(
                ring_,
                plan(ranks, [&] { return ring::pipelined_scratch_bytes(blocks_, segment_bytes); }));
            break;
        case Algorithm::recursive_doubling:
            recursive::doubling_allreduce(wire_, plan(1, [&] {
                                              return recursive::doubling_scratch_bytes<MemberWire>(
                                                  blocks_, reduce, ranks);
                                          }));
            break;
        case Algorithm::direct: direct::allreduce(wire_, plan(ranks, direct_scratch)); break;
        case Algorithm::parameter_server: direct::allreduce(wire_, plan(1, direct_scratch)); break;
        default:
            throw Error(ErrorCode::internal, "the log names an algorithm that does no allreduce");
    }
}

void HostBackend::allreduce_by_levels(const engine::Bundle& bundle, const Part& part,
                                      std::size_t segment_bytes) {
    const device::HostReduce reduce(part.dtype, bundle.op, bundle.contributors, bundle.postscale),
        within(part.dtype, bundle.op, 1);
    auto& local = levels_->local();
    auto& across = levels_->across();
    blocks_.assign(part.members, reduce.element_bytes(), wire_.size());
    local.run(bundle.operation, part.total_bytes, segment_bytes,
              [&](MemberPeers& peers, std::size_t segment) {
                  hierarchical::allreduce(
                      peers, across,
                      {.blocks = blocks_,
                       .scratch = scratch_.get(
                           hierarchical::allreduce_scratch_bytes(peers, across, blocks_, segment)),
                       .reduce = reduce,
                       .segment_bytes = segment},
                      within);
              });
}

void HostBackend::broadcast(const engine::Bundle& bundle) {
    std::vector<std::span<std::byte>> members;
    for (const auto& piece : bundle.pieces) members.push_back(piece.tensor.memory());
    blocks_.assign(members, 1, 1);
    const auto segment_bytes = static_cast<std::size_t>(bundle.policy.segment_bytes);
    if (stages(bundle.policy))
        return stages_->run(bundle.operation, blocks_.total_bytes(), segment_bytes,
                            [&](MemberPeers& peers, std::size_t segment) {
                                direct::staged_broadcast(peers, blocks_, bundle.root, segment);
                            });
    tree::broadcast(wire_,
                    {.blocks = blocks_,
                     .scratch = scratch_.get(tree::broadcast_scratch_bytes(blocks_, segment_bytes)),
                     .segment_bytes = segment_bytes,
                     .root = bundle.root});
}

/// The log has made sure that all have come; this lets them leave together.
void HostBackend::barrier(const protocol::Policy& policy) {
    if (stages(policy)) return direct::staged_barrier(stages_->peers());
    tree::barrier(wire_, scratch_.get(tree::barrier_scratch_bytes));
}

/// places[r] is for what rank r has; this rank's is filled.
void HostBackend::gather(const protocol::Policy& policy,
                         std::span<const std::span<std::byte>> places) {
    if (stages(policy)) {
        std::size_t bytes = 0;
        for (const auto place : places) bytes += place.size();
        return stages_->run(protocol::OperationKind::all_gather, bytes,
                            static_cast<std::size_t>(policy.segment_bytes),
                            [&](MemberPeers& peers, std::size_t segment) {
                                direct::staged_all_gather(peers, places, segment);
                            });
    }
    std::vector<std::span<std::byte>> around;
    for (const int rank : grid_.host_by_host()) {
        // The members ascend.
        const auto position =
            std::ranges::lower_bound(group_.members, rank) - group_.members.begin();
        around.push_back(places[static_cast<std::size_t>(position)]);
    }
    ring::all_gather(ring_, around);
}

/// The numbers of rows first, because they are in no description; then the rows.
void HostBackend::all_gather(const protocol::Policy& policy, const engine::Piece& piece) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(wire_.size()));
    const auto self = static_cast<std::size_t>(wire_.rank());
    rows[self] = piece.tensor.shape[0];
    std::vector<std::span<std::byte>> counts;
    for (auto& count : rows) counts.push_back(std::as_writable_bytes(std::span(&count, 1)));
    gather(policy, counts);
    require_possible(rows, row_bytes(piece.tensor), wire_);
    const auto places = lay_out(*piece.result, piece.tensor, rows);
    copy(places[self], piece.tensor.memory());
    gather(policy, places);
}

/// parts[r] goes to rank r, places[r] comes from there; `longest_bytes` is the longest that any
/// rank gives any other.
void HostBackend::exchange(const protocol::Policy& policy,
                           std::span<const std::span<const std::byte>> parts,
                           std::span<const std::span<std::byte>> places,
                           std::size_t longest_bytes) {
    if (!stages(policy)) return pairwise::all_to_all(wire_, parts, places);
    stages_->run(protocol::OperationKind::all_to_all, longest_bytes * places.size(),
                 static_cast<std::size_t>(policy.segment_bytes),
                 [&](MemberPeers& peers, std::size_t segment) {
                     direct::staged_all_to_all(peers, parts, places, longest_bytes, segment);
                 });
}

/// The same as with all_gather.
void HostBackend::all_to_all(const protocol::Policy& policy, const engine::Piece& piece) {
    struct Split {
        std::int64_t rows = 0, longest = 0;  ///< for the other; of all that this rank gives
    };
    const auto longest = std::ranges::max(piece.splits);
    std::vector<Split> told, heard(piece.splits.size());
    for (const auto split : piece.splits) told.push_back({split, longest});
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
    const auto row = row_bytes(piece.tensor);
    require_possible(rows, row, wire_);
    require_possible(longest_of_each, row, wire_);
    const auto places = lay_out(*piece.result, piece.tensor, rows);
    exchange(policy, cut(piece.tensor.memory(), row, piece.splits), places,
             static_cast<std::size_t>(std::ranges::max(longest_of_each)) * row);
}

void HostBackend::reduce_scatter(const engine::Bundle& bundle, const engine::Piece& piece) {
    const auto ranks = wire_.size();
    const auto& tensor = piece.tensor;
    const device::HostReduce reduce(tensor.dtype, bundle.op, bundle.contributors, bundle.postscale);
    const auto segment_bytes = selection::direct_segment_bytes(
        ranks, static_cast<std::size_t>(bundle.policy.segment_bytes));
    std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks), tensor.shape[0] / ranks);
    for (auto& row : std::span(rows).first(static_cast<std::size_t>(tensor.shape[0] % ranks)))
        ++row;

    const std::span<const std::byte> given = tensor.memory();
    const bool scales = bundle.prescale != 1;
    auto blocks = cut(given, row_bytes(tensor), rows);
    const bool staged = stages(bundle.policy);
    const auto scratch_bytes =
        staged ? direct::stage_scratch_bytes(ranks)
               : direct::reduce_scatter_scratch_bytes<MemberWire>(blocks, segment_bytes);
    Scratch scratch(scratch_.get(padded(scratch_bytes) + (scales ? padded(given.size()) : 0)));
    const auto working = scratch.cut(scratch_bytes);
    if (scales) {  // a copy: the caller's input stays as it is
        const auto scaled = scratch.cut(given.size());
        copy(scaled, given);
        device::scale(tensor.dtype, scaled, bundle.prescale);
        blocks = cut(scaled, row_bytes(tensor), rows);
    }
    const auto own = std::span(rows).subspan(static_cast<std::size_t>(wire_.rank()), 1);
    const auto place = lay_out(*piece.result, tensor, own);
    direct::ReduceScatterPlan plan{.input = blocks,
                                   .output = place.front(),
                                   .scratch = working,
                                   .reduce = reduce,
                                   .segment_bytes = segment_bytes};
    if (!staged) return direct::reduce_scatter(wire_, plan);
    stages_->run(bundle.operation, given.size(), segment_bytes,
                 [&](MemberPeers& peers, std::size_t segment) {
                     plan.segment_bytes = segment;
                     direct::staged_reduce_scatter(peers, plan);
                 });
}

}  // namespace guozhuang::backends
