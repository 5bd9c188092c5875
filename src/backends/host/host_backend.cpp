#include "backends/host/host_backend.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <new>
#include <utility>

#include "backends/rows.hpp"
#include "collectives/layout/rows.hpp"
#include "collectives/operations.hpp"
#include "device/host/host_reduce.hpp"
#include "device/host/kernels.hpp"
#include "device/host/wide_integers.hpp"
#include "device/reduction.hpp"

namespace guozhuang::backends {
namespace {

using wire::GroupWire;
using wire::SharedMemoryGroup;

}  // namespace

HostBackend::HostBackend(const wire::Group& group, std::shared_ptr<ScratchStore> store,
                         std::shared_ptr<trace::Timeline> timeline)
    : wire_(group),
      group_(group),
      grid_(group.transport.topology().host_of, group.ranks, group.transport.rank()),
      by_host_(grid_.ranks_by_host(), grid_.ring_rank()),
      ring_(group.subgroup(grid_.host_by_host(), grid_.ring_rank())),
      store_(std::move(store)),
      timeline_(std::move(timeline)) {
    needs_stages_ =
        wire_.size() > 1 && (can_stage(group_.transport, group_.ranks) || Hierarchy::fits(group_));
    if (is_the_first(group_)) create_stages();
    eager_scratch_.get(staged::staged_scratch_bytes<SharedMemoryGroup>(wire_.size(), 1));
}

/// Called in the constructor, where all ranks are at the same point, or with the first bundle that
/// moves data, after which all ranks do the same in the same order.
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
/// policy comes from the log, and they create the stages together. On one host all sums use the
/// tree, so tensors on every kind of device get the same bits, and so does a job without shared
/// memory.
selection::Policy HostBackend::usable_part_of(Policy policy) const {
    if (!selection::row_of(policy.forced).by_name)
        throw Error(ErrorCode::wire, fmt::format("the log forces the algorithm '{}', which only "
                                                 "ranks that share memory can choose",
                                                 name_of(policy.forced)));
    policy.reproducible = policy.reproducible || grid_.hosts() == 1;
    policy.staging = policy.staging && tuner_;
    policy.hierarchy = policy.hierarchy && hierarchy_;
    return policy;
}

/// The AllreduceSite of some tensors of one dtype on this rank. stage(), stage_on_host() and
/// across() throw if the ranks have no such memory or hosts: selection then chooses no algorithm
/// that needs them.
class HostBackend::SumSite {
public:
    struct Sum {
        const device::HostReduce reduce;
        const device::HostReduce within;  ///< without the finish
        std::span<const std::span<std::byte>> tensors;
        std::size_t bytes;  ///< of all tensors together
        std::size_t segment_bytes;
    };
    SumSite(HostBackend& backend, const Sum& sum) : backend_(backend), sum_(sum) {}

    GroupWire& wire() noexcept { return backend_.wire_; }
    GroupWire& ring() noexcept { return backend_.ring_; }
    std::span<GroupWire> across() { return backend_.hierarchy_.value().across(); }
    int columns() const noexcept { return backend_.grid_.columns(); }
    const device::HostReduce& within() const { return sum_.within; }
    bool may_double_by_host(std::size_t bytes) const {
        return backend_.hierarchy_ && backend_.hierarchy_->may_double(bytes);
    }
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
            OperationKind::allreduce, sum_.bytes,
            [&](SharedMemoryGroup& group) { move(group, args); });
    }

private:
    HostBackend& backend_;
    const Sum sum_;
};

/// The OperationSite of one bundle on this rank.
class HostBackend::Site {
public:
    Site(HostBackend& backend, const engine::Bundle& bundle)
        : backend_(backend), bundle_(bundle), policy_(backend.usable_part_of(bundle.policy)) {}

    std::size_t tensors() const noexcept { return bundle_.entries.size(); }
    SiteTensor tensor(std::size_t i) const { return site_tensor(bundle_.entries[i]); }
    int root() const {
        const auto& order = backend_.grid_.host_by_host();
        return static_cast<int>(std::ranges::find(order, backend_.wire_.world_rank(bundle_.root)) -
                                order.begin());
    }
    ReduceOp op() const noexcept { return bundle_.description->op; }
    double prescale() const noexcept { return bundle_.description->prescale; }
    double postscale() const noexcept { return bundle_.description->postscale; }
    const Policy& policy() const noexcept { return policy_; }

    std::vector<std::span<std::byte>> result(std::size_t i, std::span<const std::int64_t> rows) {
        require_possible(i, rows);
        const auto& entry = bundle_.entries[i];
        const auto bytes = describe(*entry.result, entry.tensor, rows);
        auto memory = entry.output;
        if (!fits_output(entry, rows, wire().rank())) {
            entry.result->bytes.resize(bytes);
            memory = entry.result->bytes;
        }
        return cut_rows(memory, rows, row_bytes(entry.tensor));
    }
    void require_possible(std::size_t i, std::span<const std::int64_t> rows) {
        backends::require_possible(rows, row_bytes(bundle_.entries[i].tensor),
                                   [this](int rank) { return wire().world_rank(rank); });
    }
    Blocks& blocks() noexcept { return backend_.blocks_; }
    std::span<std::byte> scratch(std::size_t bytes) { return backend_.scratch_.get(bytes); }
    std::span<std::int64_t> wide_integers(std::size_t count) {
        if (!backend_.wide_) backend_.wide_ = backend_.store_->take();
        const auto memory = backend_.wide_->get(count * sizeof(std::int64_t));
        return {reinterpret_cast<std::int64_t*>(memory.data()), count};
    }

    GroupWire& wire() noexcept { return backend_.wire_; }
    GroupWire& ring() noexcept { return backend_.ring_; }
    template <class Byte>
    std::vector<std::span<Byte>> in_ring_order(std::span<const std::span<Byte>> blocks) {
        std::vector<std::span<Byte>> around;
        around.reserve(blocks.size());
        const auto& ranks = backend_.group_.ranks;  // they ascend
        for (const int rank : backend_.grid_.host_by_host()) {
            const auto group_rank = std::ranges::lower_bound(ranks, rank) - ranks.begin();
            around.push_back(blocks[static_cast<std::size_t>(group_rank)]);
        }
        return around;
    }
    bool stages() const noexcept { return policy_.staging; }
    template <class Move>
    void stage(std::size_t bytes, const Move& move) {
        backend_.tuner_->group().begin();
        backend_.tuner_->run(bundle_.description->operation, bytes, move);
    }
    int hosts() const noexcept { return backend_.by_host_.hosts(); }
    bool has_levels() const noexcept { return stages() || policy_.hierarchy; }
    template <class Move>
    void by_levels(std::size_t bytes, const Move& move) {
        const auto move_by_host = [&](SharedMemoryGroup& group) { move(group, backend_.by_host_); };
        if (stages()) return stage(bytes, move_by_host);
        backend_.hierarchy_->local().run(bundle_.description->operation, bytes, move_by_host);
    }

    device::HostReduce reduce(DType dtype, ReduceOp op) const {
        return device::HostReduce(
            {op, dtype, bundle_.contributors, bundle_.description->postscale});
    }
    device::HostReduce within(DType dtype) const { return device::HostReduce({op(), dtype}); }
    SumSite sum_site(DType dtype, std::span<const std::span<std::byte>> tensors, std::size_t bytes,
                     std::size_t segment_bytes) {
        if (stages()) backend_.tuner_->group().begin();
        return {backend_,
                {.reduce = reduce(dtype, op()),
                 .within = within(dtype),
                 .tensors = tensors,
                 .bytes = bytes,
                 .segment_bytes = segment_bytes}};
    }
    static auto adasum_pair(DType dtype) { return device::adasum_for(dtype); }
    static void scale(DType dtype, std::span<std::byte> memory, double factor) {
        device::scale(dtype, memory, factor);
    }
    bool averages_in_i64(DType dtype) const noexcept {
        return device::averages_in_i64(op(), dtype);
    }
    static void widen(std::span<std::int64_t> into, DType dtype, std::span<const std::byte> from) {
        device::widen_integers(into, dtype, from);
    }
    static void narrow(DType dtype, std::span<std::byte> into, std::span<const std::int64_t> from) {
        device::narrow_integers(dtype, into, from);
    }
    trace::TimelineSlice trace(std::string_view algorithm, std::size_t bytes,
                               std::size_t tensors) const {
        return {*backend_.timeline_, "fused", [=] {
                    return trace::TimelineFacts{
                        .algorithm = algorithm, .bytes = bytes, .tensors = tensors};
                }};
    }

private:
    HostBackend& backend_;
    const engine::Bundle& bundle_;
    const Policy policy_;
};

/// In the order of a symmetric allreduce.
void HostBackend::add_up_contributions(const engine::Bundle& bundle) {
    const bool is_sum = bundle.description->operation == OperationKind::allreduce;
    const auto bytes =
        is_sum && bundle.entries.size() == 1 ? bundle.entries.front().tensor.bytes() : 0;
    if (bytes * group_.ranks.size() != bundle.contributions.size())
        throw Error(ErrorCode::wire,
                    fmt::format("the log brings {} bytes of {} ranks for a tensor of {}",
                                bundle.contributions.size(), wire_.size(), bytes));
    const auto& tensor = bundle.entries.front().tensor;
    const Site site(*this, bundle);
    const auto slice = site.trace("in_log", bytes, 1);
    std::vector<std::span<const std::byte>> terms;
    for (auto rest = bundle.contributions; !rest.empty(); rest = rest.subspan(bytes))
        terms.push_back(rest.first(bytes));
    site.reduce(tensor.dtype, site.op()).combine_tree(tensor.memory(), terms);
}

void HostBackend::run(const engine::Bundle& bundle) {
    if (!bundle.contributions.empty()) return add_up_contributions(bundle);
    scratch_ = store_->take();
    if (!bundle.entries.empty()) create_stages();
    Site site(*this, bundle);
    guozhuang::run(bundle.description->operation, site);
    // The next bundle takes its scratch first, and so gets the same again.
    if (wide_) store_->give_back(*std::exchange(wide_, std::nullopt));
    store_->give_back(std::move(scratch_));
}

/// As after an agreement, except that the first round is offered. If there is no memory for it, the
/// call goes the ordinary way, which handles that.
bool HostBackend::run_eagerly(const engine::Bundle& bundle, std::uint64_t fingerprint) {
    Site given(*this, bundle);
    if (wire_.size() == 1) {
        scale_alone(given);
        return true;
    }
    const auto dtype = bundle.entries.front().tensor.dtype;
    if (!tuner_ || bundle.description->prescale != 1 || given.averages_in_i64(dtype)) return false;
    auto& group = tuner_->group();
    const auto memory = bundle.entries.front().tensor.memory();
    const std::span tensors(&memory, 1);
    const auto reduce = given.reduce(dtype, bundle.description->op);
    if (memory.size() <= staged::symmetric_limit_bytes(group)) {
        group.set_streams(false);
        Scratch own(eager_scratch_.get(0));
        const auto terms = own.cut_array<std::span<const std::byte>>(group_.ranks.size());
        return group.begin_offer(fingerprint) &&
               staged::symmetric_allreduce(group, tensors, memory.size(), reduce, terms);
    }
    SumSite site(*this, {.reduce = reduce,
                         .within = reduce,
                         .tensors = tensors,
                         .bytes = memory.size(),
                         .segment_bytes = selection::staged_segment_bytes(
                             wire_.size(), bundle.policy.segment_bytes)});
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

}  // namespace guozhuang::backends
