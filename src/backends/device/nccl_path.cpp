#include "backends/device/nccl_path.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <guozhuang/error.hpp>
#include <utility>

#include "backends/device/chunks.hpp"
#include "backends/rows.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"

namespace guozhuang::backends {
namespace {

using protocol::OperationKind;

/// Tensors above `small_bytes` are moved in place, one by one; smaller ones are moved together, up
/// to `round_bytes` per round. All ranks must use the same values.
constexpr std::size_t small_bytes = std::size_t{256} << 10, round_bytes = std::size_t{4} << 20;

/// How long NCCL may take to abort a communicator.
constexpr auto abort_limit = std::chrono::seconds(5);

/// Nobody rings when NCCL has enqueued a group, which takes it microseconds as a rule: so no sleep
/// is longer than the first one, or a 64th of the wait so far.
base::WaitSettings settings_for_a_group(base::WaitSettings settings) {
    settings.park_limit = settings.park_first;
    settings.long_park_limit = std::chrono::milliseconds(10);
    return settings;
}

/// While ranks connect.
constexpr auto between_rounds = std::chrono::milliseconds(10);

bool is_reduction(OperationKind operation) noexcept {
    return operation == OperationKind::allreduce || operation == OperationKind::reduce_scatter;
}

/// Joins tensors that follow each other in memory.
std::vector<std::span<std::byte>> runs_of(std::span<const std::span<std::byte>> tensors) {
    std::vector<std::span<std::byte>> runs;
    for (const auto& tensor : tensors) {
        if (!runs.empty() && runs.back().data() + runs.back().size() == tensor.data())
            runs.back() = {runs.back().data(), runs.back().size() + tensor.size()};
        else
            runs.push_back(tensor);
    }
    return runs;
}

bool are_equal(std::span<const std::int64_t> rows) {
    return std::ranges::adjacent_find(rows, std::not_equal_to()) == rows.end();
}

/// One tensor of a bundle whose results have rows, and where its result goes.
struct Move {
    DType dtype;
    std::size_t row_bytes;
    std::span<std::byte> from, into;
    std::span<const std::int64_t> splits;  ///< rows for each rank; reduce_scatter: or none
    std::span<const std::int64_t> rows;    ///< rows from each rank
    std::int64_t input_rows;
};

void all_gather(device::NcclCommunicator& nccl, device::Stream& stream, const Move& move) {
    if (are_equal(move.rows)) {
        if (!move.into.empty()) nccl.all_gather(stream, move.into, move.from);
        return;
    }
    const auto blocks = cut_rows(move.into, move.rows, move.row_bytes);
    for (std::size_t rank = 0; rank < blocks.size(); ++rank)
        if (!blocks[rank].empty())
            nccl.broadcast(stream, blocks[rank], move.from, static_cast<int>(rank));
}

void all_to_all(device::NcclCommunicator& nccl, device::Stream& stream, const Move& move) {
    const auto given = cut_rows(move.from, move.splits, move.row_bytes),
               taken = cut_rows(move.into, move.rows, move.row_bytes);
    for (std::size_t rank = 0; rank < given.size(); ++rank) {
        if (!given[rank].empty()) nccl.send(stream, given[rank], static_cast<int>(rank));
        if (!taken[rank].empty()) nccl.receive(stream, taken[rank], static_cast<int>(rank));
    }
}

void reduce_scatter(device::NcclCommunicator& nccl, device::Stream& stream, ReduceOp op,
                    const Move& move, int ranks) {
    const auto rows = reduce_scatter_rows(move.input_rows, move.splits, ranks);
    if (are_equal(rows)) {
        if (!move.into.empty()) nccl.reduce_scatter(stream, {op, move.dtype}, move.into, move.from);
        return;
    }
    const auto blocks = cut_rows(move.from, rows, move.row_bytes);
    for (std::size_t rank = 0; rank < blocks.size(); ++rank)
        if (!blocks[rank].empty())
            nccl.reduce(stream, {op, move.dtype}, move.into, blocks[rank], static_cast<int>(rank));
}

}  // namespace

bool is_in_nccl(const engine::Bundle& bundle) noexcept {
    if (!is_reduction(bundle.operation)) return true;
    return !bundle.policy.reproducible &&
           std::ranges::all_of(bundle.entries, [&](const engine::BundleEntry& entry) {
               return device::is_in_nccl({bundle.op, entry.tensor.dtype});
           });
}

// --- the communicator ----------------------------------------------------------------------------

std::shared_ptr<WatchedCommunicator> NcclPath::communicator() {
    const base::Lock lock(mutex_);
    return communicator_;
}

void NcclPath::release() noexcept {
    const base::Lock lock(mutex_);
    if (communicator_) communicator_->release();
}

void NcclPath::stop() noexcept {
    std::shared_ptr<WatchedCommunicator> made;
    {
        const base::Lock lock(mutex_);
        made.swap(communicator_);
    }
    if (made && !made->stop(deps_.group.transport.doorbell(), abort_limit))
        base::log_warning("NCCL does not end a communicator, which is left to itself");
}

/// Rank 0 makes the communicator's id. NCCL connects in the background, and if it fails on one rank
/// the others would wait for that: so they tell each other again and again how far they are.
std::optional<wire::SharingFailure> NcclPath::connect(const RankExchange& ranks) {
    const auto gather = [&](const auto& own) { return ranks.gather(own); };
    if (auto failure = wire::share_together(
            gather, [&] { return ranks.rank == 0 ? deps_.nccl.make_id() : device::NcclId(); },
            [&](const std::vector<device::NcclId>& ids) { begin_to_connect(ids[0], ranks); }))
        return failure;
    const auto connecting = communicator();
    const auto deadline = base::deadline_after(deps_.connect_limit);
    for (bool are_ready = false; !are_ready;) {
        auto failure = wire::share_together(
            gather, [&] { return int{connecting->is_ready()}; },
            [&](const std::vector<int>& ready) {
                are_ready = std::ranges::count(ready, 0) == 0;
                if (!are_ready && base::Clock::now() >= deadline) throw_late();
            });
        if (failure) return failure;
        if (!are_ready) wait_for_end(between_rounds);
    }
    return std::nullopt;
}

void NcclPath::begin_to_connect(const device::NcclId& id, const RankExchange& ranks) {
    auto made =
        WatchedCommunicator::make(deps_.nccl.connect(id, ranks.rank, ranks.ranks, deps_.device));
    const base::Lock lock(mutex_);
    communicator_ = std::move(made);
}

void NcclPath::throw_late() const {
    const auto seconds = std::chrono::duration<double>(deps_.connect_limit).count();
    throw Error(ErrorCode::timeout, fmt::format("NCCL has not connected {} within {:g} s",
                                                base::list_ranks(deps_.group.ranks), seconds));
}

/// Throws why the job ends, if it does in that time.
void NcclPath::wait_for_end(std::chrono::milliseconds limit) const {
    auto waiting = deps_.group;
    waiting.deadline = base::Clock::now() + limit;
    try {
        waiting.wait_until([] { return false; });
    } catch (const base::DeadlinePassed&) {  // NOLINT(bugprone-empty-catch): that was meant
    }
}

/// Returns when NCCL has enqueued the calls, so that what is enqueued next is behind them.
void NcclPath::group(const Calls& calls) {
    const auto connected = communicator();
    try {
        connected->group(calls);
        deps_.group.wait_until([&] { return connected->is_ready(); },
                               settings_for_a_group(deps_.group.transport.wait_settings()));
    } catch (const Error&) {
        if (connected->has_failed()) wait_for_end(WatchedCommunicator::until_death_is_known);
        throw;
    }
}

// --- bundles -------------------------------------------------------------------------------------

void NcclPath::enqueue(std::shared_ptr<engine::StreamBundle> given, device::Stream& stream) {
    communicator()->watch(given);
    deps_.order.begin_alone(stream);
    move(given->bundle(), stream);
    deps_.order.end_alone(stream);
}

void NcclPath::move(const engine::Bundle& bundle, device::Stream& stream) {
    switch (bundle.operation) {
        case OperationKind::allreduce: return allreduce(bundle, stream);
        case OperationKind::broadcast: return broadcast(bundle, stream);
        case OperationKind::all_gather:
        case OperationKind::all_to_all:
        case OperationKind::reduce_scatter: return move_rows(bundle, stream);
        default: break;
    }
    throw Error(ErrorCode::internal, "a bundle without tensors has come to NCCL");
}

/// Follows from sizes and dtypes alone, since the ranks must make the same calls in the same groups
/// wherever their tensors lie.
std::vector<NcclPath::Round> NcclPath::rounds_of(const engine::Bundle& bundle) {
    std::vector<Round> rounds(1);
    std::size_t packed = 0;
    for (const auto& entry : bundle.entries) {
        const auto memory = entry.tensor.memory();
        if (memory.empty()) continue;
        const auto dtype = is_reduction(bundle.operation) ? entry.tensor.dtype : DType::u8;
        const bool is_small = memory.size() <= small_bytes;
        if (is_small && packed + memory.size() > round_bytes) {
            rounds.emplace_back();
            packed = 0;
        }
        auto& round = rounds.back();
        auto fused = std::ranges::find_if(round, [&](const FusedTensors& each) {
            return is_small && each.is_small && each.dtype == dtype;
        });
        if (fused == round.end()) {
            round.push_back({.dtype = dtype, .is_small = is_small, .tensors = {}, .memory = {}});
            fused = round.end() - 1;
        }
        fused->tensors.push_back(memory);
        fused->bytes += memory.size();
        if (is_small) packed += memory.size();
    }
    return rounds;
}

void NcclPath::find_memory(Round& round) {
    std::span<std::byte> rest;
    for (auto& fused : round) {
        if (const auto runs = runs_of(fused.tensors); runs.size() == 1) {
            fused.memory = runs.front();
            continue;
        }
        if (rest.empty()) rest = scratch(round_bytes + all_dtypes.size() * room_for({.bytes = 1}));
        fused.memory = take(rest, fused.bytes);
    }
}

/// A copy of memory onto itself finishes it where it lies.
void NcclPath::copy(std::vector<device::Copy> copies, const device::Finish& finish,
                    device::Stream& stream) {
    if (finish.is_identity())
        std::erase_if(copies, [](const auto& each) { return each.to.data() == each.from.data(); });
    deps_.driver->copy_all(stream, copies, finish);
}

void NcclPath::pack(const Round& round, const device::Finish& finish, device::Stream& stream) {
    std::vector<device::Copy> copies;
    for (const auto& fused : round)
        for (const auto& [tensor, moved] : moved_tensors(fused))
            copies.push_back({moved, tensor, fused.dtype});
    copy(std::move(copies), finish, stream);
}

void NcclPath::unpack(const Round& round, const device::Finish& finish, device::Stream& stream) {
    std::vector<device::Copy> copies;
    for (const auto& fused : round)
        for (const auto& [tensor, moved] : moved_tensors(fused))
            copies.push_back({tensor, moved, fused.dtype});
    copy(std::move(copies), finish, stream);
}

/// Packed ones apart from each other even if they touch, since no copy of CUDA's may reach from one
/// allocation into the next.
std::vector<NcclPath::MovedTensor> NcclPath::moved_tensors(const FusedTensors& fused) {
    if (fused.is_in_place()) return {{fused.memory, fused.memory}};
    std::vector<MovedTensor> moved;
    auto rest = fused.memory;
    for (const auto& tensor : fused.tensors) {
        moved.push_back({tensor, rest.first(tensor.size())});
        rest = rest.subspan(tensor.size());
    }
    return moved;
}

void NcclPath::allreduce(const engine::Bundle& bundle, device::Stream& stream) {
    for (auto& round : rounds_of(bundle)) {
        find_memory(round);
        pack(round, {.scale = bundle.prescale}, stream);
        group([&](device::NcclCommunicator& nccl) {
            for (const auto& fused : round)
                nccl.allreduce(stream, {bundle.op, fused.dtype}, fused.memory);
        });
        unpack(round, finish_of(bundle), stream);
    }
}

void NcclPath::broadcast(const engine::Bundle& bundle, device::Stream& stream) {
    const bool is_root = rank() == bundle.root;
    for (auto& round : rounds_of(bundle)) {
        find_memory(round);
        if (is_root) pack(round, {}, stream);
        group([&](device::NcclCommunicator& nccl) {
            for (const auto& fused : round)
                nccl.broadcast(stream, fused.memory, fused.memory, bundle.root);
        });
        if (!is_root) unpack(round, {}, stream);
    }
}

void NcclPath::move_rows(const engine::Bundle& bundle, device::Stream& stream) {
    const auto rows = deps_.results.rows_of(bundle);
    const auto inputs = scaled_inputs(bundle, stream);
    std::vector<Move> moves;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto& entry = bundle.entries[i];
        moves.push_back({.dtype = entry.tensor.dtype,
                         .row_bytes = row_bytes(entry.tensor),
                         .from = inputs[i],
                         .into = deps_.results.memory_for(entry, rows[i]),
                         .splits = entry.splits,
                         .rows = rows[i],
                         .input_rows = entry.tensor.shape[0]});
    }
    group([&](device::NcclCommunicator& nccl) {
        for (const auto& move : moves) switch (bundle.operation) {
                case OperationKind::all_gather: all_gather(nccl, stream, move); break;
                case OperationKind::all_to_all: all_to_all(nccl, stream, move); break;
                default: reduce_scatter(nccl, stream, bundle.op, move, ranks());
            }
    });
    if (bundle.operation != OperationKind::reduce_scatter) return;
    std::vector<device::Copy> sums;
    for (const auto& move : moves) sums.push_back({move.into, move.into, move.dtype});
    copy(std::move(sums), finish_of(bundle), stream);
}

/// The tensors themselves if there is no scale, since an input stays as it is.
std::vector<std::span<std::byte>> NcclPath::scaled_inputs(const engine::Bundle& bundle,
                                                          device::Stream& stream) {
    std::vector<std::span<std::byte>> inputs;
    std::size_t bytes = 0;
    for (const auto& entry : bundle.entries) {
        inputs.push_back(entry.tensor.memory());
        bytes += room_for({.bytes = inputs.back().size()});
    }
    if (bundle.prescale == 1) return inputs;
    auto rest = scratch(bytes);
    std::vector<device::Copy> copies;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto scaled = take(rest, inputs[i].size());
        copies.push_back({scaled, inputs[i], bundle.entries[i].tensor.dtype});
        inputs[i] = scaled;
    }
    deps_.driver->copy_all(stream, copies, {.scale = bundle.prescale});
    return inputs;
}

std::span<std::byte> NcclPath::scratch(std::size_t bytes) {
    const auto have = scratch_.empty() ? 0 : scratch_.back().memory.size();
    if (bytes > have)
        scratch_.push_back(
            device::allocate_owned(deps_.driver, deps_.device, std::max(bytes, 2 * have)));
    return scratch_.empty() ? std::span<std::byte>() : scratch_.back().memory;
}

}  // namespace guozhuang::backends
