#include "backends/host/host_backend.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <new>
#include <utility>

#include "backends/rows.hpp"
#include "collectives/adasum/allreduce.hpp"
#include "collectives/allreduces.hpp"
#include "collectives/direct/reduce_scatter.hpp"
#include "collectives/pairwise/all_to_all.hpp"
#include "collectives/ring/all_gather.hpp"
#include "collectives/select.hpp"
#include "collectives/staged/staged_all_gather.hpp"
#include "collectives/staged/staged_all_to_all.hpp"
#include "collectives/staged/staged_broadcast.hpp"
#include "collectives/staged/staged_reduce_scatter.hpp"
#include "collectives/tree/barrier.hpp"
#include "collectives/tree/broadcast.hpp"
#include "device/host/host_reduce.hpp"
#include "device/host/wide_integers.hpp"
#include "device/reduction.hpp"

namespace guozhuang::backends {
namespace {

using wire::GroupWire;
using wire::SharedMemoryGroup;

/// Prepares a result of these rows from each rank and gives each rank's destination in it.
std::vector<std::span<std::byte>> lay_out(const engine::BundleEntry& entry,
                                          std::span<const std::int64_t> rows, int rank) {
    const auto row = row_bytes(entry.tensor);
    const auto bytes = describe(*entry.result, entry.tensor, rows);
    auto rest = entry.output;
    if (!fits_output(entry, rows, rank)) {
        entry.result->bytes.resize(bytes);
        rest = entry.result->bytes;
    }
    std::vector<std::span<std::byte>> destinations;
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

/// The allreduce of one rank, whatever the op. Writes nothing without scales: the memory may be
/// read-only.
void scale_alone(DType dtype, std::span<std::byte> memory, double prescale, double postscale) {
    if (prescale != 1) device::scale(dtype, memory, prescale);
    if (postscale != 1) device::scale(dtype, memory, postscale);
}

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

HostBackend::HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store,
                         std::shared_ptr<trace::Timeline> timeline)
    : wire_(group),
      group_(group),
      grid_(group.transport.topology().host_of, group.ranks, group.transport.rank()),
      ring_(group.subgroup(grid_.host_by_host(), grid_.ring_rank())),
      store_(std::move(store)),
      timeline_(std::move(timeline)) {
    needs_stages_ =
        wire_.size() > 1 && (can_stage(group_.transport, group_.ranks) || Hierarchy::fits(group_));
    if (is_the_first(group_)) create_stages();
    eager_scratch_.get(staged::staged_scratch_bytes<SharedMemoryGroup>(wire_.size(), 1));
}

/// In the constructor, where all ranks are at the same point; or with the first bundle that moves
/// data, from which on they do the same in the same order.
void HostBackend::create_stages() {
    if (!std::exchange(needs_stages_, false)) return;
    set_buffers_ = SetStagingBuffers::create_shared(wire_, group_);
    if (!set_buffers_) return;
    if (can_stage(group_.transport, group_.ranks)) {
        tuner_.emplace(group_, set_buffers_->staging());
    } else {
        hierarchy_.emplace(group_, set_buffers_->staging());
    }
}

/// The policy of the log as far as this backend's ranks can follow it. All ranks agree on it: the
/// policy is the log's, and the stages are made together. On one host all sums are of the tree, so
/// tensors on every kind of device get the same bits, and so does a job without shared memory.
selection::Policy HostBackend::usable_part_of(Policy policy) const {
    if (!selection::row_of(policy.forced).by_name)
        throw Error(ErrorCode::wire, fmt::format("the log forces the algorithm '{}', which only "
                                                 "ranks that share memory can choose",
                                                 name_of(policy.forced)));
    policy.reproducible = policy.reproducible || grid_.hosts() == 1;
    policy.staging = uses_staging(policy);
    policy.hierarchy = policy.hierarchy && hierarchy_;
    return policy;
}

void HostBackend::run(const engine::Bundle& bundle) {
    scratch_ = store_->take();
    if (bundle.operation != protocol::OperationKind::barrier) create_stages();
    move(bundle);
    store_->give_back(std::move(scratch_));
}

/// The AllreduceSite of one bundle on this rank. stage(), stage_on_host() and across() throw where
/// the ranks have no such memory or hosts: selection chooses no algorithm that needs them.
class HostBackend::Site {
public:
    struct Sum {
        const device::HostReduce& reduce;
        const device::HostReduce within;  ///< without the finish
        std::span<const std::span<std::byte>> tensors;
        std::size_t bytes;  ///< of all tensors together
        std::size_t segment_bytes;
    };
    Site(HostBackend& backend, const Sum& sum) : backend_(backend), sum_(sum) {}

    GroupWire& wire() noexcept { return backend_.wire_; }
    GroupWire& ring() noexcept { return backend_.ring_; }
    GroupWire& across() { return backend_.hierarchy_.value().across(); }
    const device::HostReduce& within() const { return sum_.within; }
    std::span<std::byte> scratch(std::size_t bytes) { return backend_.scratch_.get(bytes); }

    AllreduceArgs cut(int blocks, Cut cut = Cut::tensors) {
        backend_.blocks_.assign(sum_.tensors, sum_.reduce.element_bytes(), blocks, cut);
        return {.blocks = backend_.blocks_,
                .scratch = {},
                .reduce = sum_.reduce,
                .segment_bytes = sum_.segment_bytes,
                .tensors = sum_.tensors,
                .rest = &backend_.rest_};
    }

    /// The stores stay in the caches: each line goes to one rank and comes back with the sum.
    template <class Move>
    bool stage(const AllreduceArgs& args, const Move& move) {
        auto& group = backend_.tuner_.value().group();
        group.set_streams(false);
        return move(group, args);
    }
    template <class Move>
    void stage_on_host(const AllreduceArgs& args, const Move& move) {
        backend_.hierarchy_.value().local().run(
            protocol::OperationKind::allreduce, sum_.bytes,
            [&](SharedMemoryGroup& group) { move(group, args); });
    }

private:
    HostBackend& backend_;
    const Sum sum_;
};

/// As after an agreement, but that the first round is offered. If there is no memory for it, the
/// call goes the ordinary way, which deals with that.
bool HostBackend::run_eagerly(const engine::EagerAllreduce& allreduce) {
    const auto& [memory, dtype, op, prescale, postscale, policy, fingerprint] = allreduce;
    if (wire_.size() == 1) {
        scale_alone(dtype, memory, prescale, postscale);
        return true;
    }
    if (!tuner_ || prescale != 1 || device::averages_in_i64(op, dtype)) return false;
    auto& group = tuner_->group();
    const std::span<const std::span<std::byte>> tensors(&memory, 1);
    const device::HostReduce reduce(dtype, op, wire_.size(), postscale);
    if (memory.size() <= staged::symmetric_limit_bytes(group)) {
        group.set_streams(false);
        Scratch own(eager_scratch_.get(0));
        const auto terms = own.cut_array<std::span<const std::byte>>(group_.ranks.size());
        return group.begin_offer(fingerprint) &&
               staged::symmetric_allreduce(group, tensors, memory.size(), reduce, terms);
    }
    Site site(*this, {.reduce = reduce,
                      .within = reduce,
                      .tensors = tensors,
                      .bytes = memory.size(),
                      .segment_bytes =
                          selection::staged_segment_bytes(wire_.size(), policy.segment_bytes)});
    std::swap(scratch_, eager_scratch_);
    const auto round = group.round();
    bool done = false;
    try {
        done = group.begin_offer(fingerprint) && staged::allreduce_at(site);
    } catch (const std::bad_alloc&) {
        if (group.round() != round) throw;  // the others count on this rank
    }
    std::swap(scratch_, eager_scratch_);
    return done;
}

void HostBackend::decline_eager() noexcept {
    if (tuner_) tuner_->group().decline();
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
            for (const auto& entry : bundle.entries)
                wire_.size() > 1 && device::averages_in_i64(bundle.op, entry.tensor.dtype)
                    ? average_scatter(bundle, entry)
                    : reduce_scatter(bundle, entry);
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
    const auto effective = usable_part_of(bundle.policy);
    std::vector<FusedTensors> all;
    for (const auto& entry : bundle.entries) {
        const auto memory = entry.tensor.memory();
        const bool small =
            selection::order_class_of(memory.size(), effective) == selection::OrderClass::tree;
        auto fused = std::find_if(all.begin(), all.end(), [&](const FusedTensors& each) {
            return each.dtype == entry.tensor.dtype && each.small == small;
        });
        if (fused == all.end()) {
            fused = all.insert(
                all.end(),
                FusedTensors{.dtype = entry.tensor.dtype, .small = small, .tensors = {}});
            fused->tensors.reserve(bundle.entries.size());
        }
        fused->tensors.push_back(memory);
        fused->largest_bytes = std::max(fused->largest_bytes, memory.size());
        fused->total_bytes += memory.size();
    }
    return all;
}

void HostBackend::allreduce(const engine::Bundle& bundle) {
    if (wire_.size() == 1) {
        for (const auto& [tensor, splits, result, output] : bundle.entries)
            scale_alone(tensor.dtype, tensor.memory(), bundle.prescale, bundle.postscale);
        return;
    }
    for (const auto& fused : fused_tensors_of(bundle)) {
        if (bundle.prescale != 1)
            for (const auto& tensor : fused.tensors)
                device::scale(fused.dtype, tensor, bundle.prescale);
        if (bundle.op == ReduceOp::adasum)
            adasum(bundle, fused);
        else if (device::averages_in_i64(bundle.op, fused.dtype))
            average_integers(bundle, fused);
        else
            allreduce(bundle, fused);
    }
}

/// In parts of a size that all ranks agree on, so that memory is bounded.
void HostBackend::average_integers(const engine::Bundle& bundle, const FusedTensors& fused) {
    constexpr std::size_t most_elements = std::size_t{1} << 20;
    const auto width = size_of(fused.dtype);
    wide_ = store_->take();
    for (const auto& tensor : fused.tensors)
        for (std::size_t first = 0; first < tensor.size(); first += most_elements * width) {
            const auto part =
                tensor.subspan(first, std::min(most_elements * width, tensor.size() - first));
            const auto numbers = wide_numbers(part.size() / width);
            const auto memory = std::as_writable_bytes(numbers);
            device::widen_integers(numbers, fused.dtype, part);
            allreduce(bundle, FusedTensors{.dtype = DType::i64,
                                           .largest_bytes = memory.size(),
                                           .total_bytes = memory.size(),
                                           .tensors = {memory}});
            device::narrow_integers(fused.dtype, part, numbers);
        }
    store_->give_back(std::move(wide_));
}

std::span<std::int64_t> HostBackend::wide_numbers(std::size_t count) {
    const auto memory = wide_.get(count * sizeof(std::int64_t));
    return {reinterpret_cast<std::int64_t*>(memory.data()), count};
}

void HostBackend::adasum(const engine::Bundle& bundle, const FusedTensors& fused) {
    const device::HostReduce reduce(fused.dtype, ReduceOp::sum, wire_.size(), bundle.postscale);
    const trace::TimelineSlice slice(*timeline_, "fused",
                                     [&] { return facts_of("adasum", fused); });
    adasum::allreduce(wire_, {.tensors = fused.tensors,
                              .scratch = scratch_.get(adasum::allreduce_scratch_bytes<GroupWire>(
                                  fused.tensors, reduce, wire_.size())),
                              .reduce = reduce,
                              .pair = device::adasum_for(fused.dtype)});
}

void HostBackend::allreduce(const engine::Bundle& bundle, const FusedTensors& fused) {
    const auto [algorithm, segment_bytes] =
        selection::choose({.tensor_bytes = fused.largest_bytes,
                           .bundle_bytes = fused.total_bytes,
                           .ranks = wire_.size(),
                           .policy = usable_part_of(bundle.policy)});
    const trace::TimelineSlice slice(
        *timeline_, "fused", [&, name = name_of(algorithm)] { return facts_of(name, fused); });
    const device::HostReduce reduce(fused.dtype, bundle.op, bundle.contributors, bundle.postscale);
    if (uses_staging(bundle.policy)) tuner_->group().begin();
    Site site(*this, {.reduce = reduce,
                      .within = {fused.dtype, bundle.op, 1},
                      .tensors = fused.tensors,
                      .bytes = fused.total_bytes,
                      .segment_bytes = segment_bytes});
    guozhuang::allreduce(algorithm, site);
}

/// An operation that the ranks have agreed on, in their rooms.
template <class Move>
void HostBackend::stage(protocol::OperationKind operation, std::size_t bytes, const Move& move) {
    tuner_->group().begin();
    tuner_->run(operation, bytes, move);
}

void HostBackend::broadcast(const engine::Bundle& bundle) {
    std::vector<std::span<std::byte>> tensors;
    for (const auto& entry : bundle.entries) tensors.push_back(entry.tensor.memory());
    blocks_.assign(tensors, 1, 1);
    const auto segment_bytes = bundle.policy.segment_bytes;
    if (uses_staging(bundle.policy))
        return stage(bundle.operation, blocks_.total_bytes(), [&](SharedMemoryGroup& group) {
            staged::staged_broadcast(group, blocks_, bundle.root, segment_bytes);
        });
    tree::broadcast(wire_,
                    {.blocks = blocks_,
                     .scratch = scratch_.get(tree::broadcast_scratch_bytes(blocks_, segment_bytes)),
                     .segment_bytes = segment_bytes,
                     .root = bundle.root});
}

/// The log has made sure that all have come; this lets them leave together.
void HostBackend::barrier(const Policy& policy) {
    if (uses_staging(policy))
        return stage(protocol::OperationKind::barrier, 0,
                     [](SharedMemoryGroup& group) { staged::staged_barrier(group); });
    tree::barrier(wire_, scratch_.get(tree::barrier_scratch_bytes));
}

/// destinations[r] is for what rank r has; this rank's is filled.
void HostBackend::gather(const Policy& policy, std::span<const std::span<std::byte>> destinations) {
    if (uses_staging(policy)) {
        std::size_t bytes = 0;
        for (const auto destination : destinations) bytes += destination.size();
        return stage(protocol::OperationKind::all_gather, bytes, [&](SharedMemoryGroup& group) {
            staged::staged_all_gather(group, destinations, policy.segment_bytes);
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
void HostBackend::all_gather(const Policy& policy, const engine::BundleEntry& entry) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(wire_.size()));
    const auto self = static_cast<std::size_t>(wire_.rank());
    rows[self] = entry.tensor.shape[0];
    std::vector<std::span<std::byte>> counts;
    for (auto& count : rows) counts.push_back(std::as_writable_bytes(std::span(&count, 1)));
    gather(policy, counts);
    const auto world_rank = [this](int rank) { return wire_.world_rank(rank); };
    require_possible(rows, row_bytes(entry.tensor), world_rank);
    const auto destinations = lay_out(entry, rows, wire_.rank());
    if (destinations[self].data() != entry.tensor.data)
        copy(destinations[self], entry.tensor.memory());
    gather(policy, destinations);
}

/// sources[r] goes to rank r, what comes from there to destinations[r]; `longest_bytes` is the
/// longest that any rank gives any other.
void HostBackend::exchange(const Policy& policy,
                           std::span<const std::span<const std::byte>> sources,
                           std::span<const std::span<std::byte>> destinations,
                           std::size_t longest_bytes) {
    if (!uses_staging(policy)) return pairwise::all_to_all(wire_, sources, destinations);
    stage(protocol::OperationKind::all_to_all, longest_bytes * destinations.size(),
          [&](SharedMemoryGroup& group) {
              staged::staged_all_to_all(group, sources, destinations, longest_bytes,
                                        policy.segment_bytes);
          });
}

/// The same as with all_gather.
void HostBackend::all_to_all(const Policy& policy, const engine::BundleEntry& entry) {
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
    const auto world_rank = [this](int rank) { return wire_.world_rank(rank); };
    require_possible(rows, row, world_rank);
    require_possible(longest_of_each, row, world_rank);
    const auto destinations = lay_out(entry, rows, wire_.rank());
    exchange(policy, cut(entry.tensor.memory(), row, entry.splits), destinations,
             static_cast<std::size_t>(std::ranges::max(longest_of_each)) * row);
}

/// As the reduce_scatter of the same tensor in i64.
void HostBackend::average_scatter(const engine::Bundle& bundle, const engine::BundleEntry& entry) {
    const auto& tensor = entry.tensor;
    const auto rows = reduce_scatter_rows(tensor.shape[0], entry.splits, wire_.size());
    const auto own = std::span(rows).subspan(static_cast<std::size_t>(wire_.rank()), 1);
    const auto destination = lay_out(entry, own, wire_.rank()).front();
    wide_ = store_->take();
    const auto count = tensor.bytes() / size_of(tensor.dtype);
    const auto numbers = wide_numbers(count + destination.size() / size_of(tensor.dtype));
    const auto input = numbers.first(count), averages = numbers.subspan(count);
    device::widen_integers(input, tensor.dtype, tensor.memory());
    Result wide_result;
    reduce_scatter(bundle, {.tensor = TensorView(input.data(), DType::i64, tensor.shape),
                            .splits = entry.splits,
                            .result = &wide_result,
                            .output = std::as_writable_bytes(averages)});
    device::narrow_integers(tensor.dtype, destination, averages);
    store_->give_back(std::move(wide_));
}

void HostBackend::reduce_scatter(const engine::Bundle& bundle, const engine::BundleEntry& entry) {
    const auto ranks = wire_.size();
    const auto& tensor = entry.tensor;
    const device::HostReduce reduce(tensor.dtype, bundle.op, bundle.contributors, bundle.postscale);
    const auto segment_bytes = selection::direct_segment_bytes(ranks, bundle.policy.segment_bytes);
    const auto rows = reduce_scatter_rows(tensor.shape[0], entry.splits, ranks);

    const std::span<const std::byte> given = tensor.memory();
    const bool scales = bundle.prescale != 1;
    auto blocks = cut(given, row_bytes(tensor), rows);
    const bool staged = uses_staging(bundle.policy);
    const auto scratch_bytes =
        staged ? staged::stage_scratch_bytes(ranks)
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
    const auto destination = lay_out(entry, own, wire_.rank());
    const direct::ReduceScatterArgs args{.input = blocks,
                                         .output = destination.front(),
                                         .scratch = working,
                                         .reduce = reduce,
                                         .segment_bytes = segment_bytes};
    if (!staged) return direct::reduce_scatter(wire_, args);
    stage(bundle.operation, given.size(),
          [&](SharedMemoryGroup& group) { staged::staged_reduce_scatter(group, args); });
}

}  // namespace guozhuang::backends
