#include "backends/device/nccl_path.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <guozhuang/error.hpp>
#include <utility>

#include "backends/rows.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "collectives/layout/fragments.hpp"
#include "collectives/layout/rows.hpp"

namespace guozhuang::backends {
namespace {

/// Tensors above `small_bytes` are moved in place, one by one; smaller ones are moved together, up
/// to `round_bytes` per round. All ranks must use the same values.
constexpr std::size_t small_bytes = std::size_t{256} << 10, round_bytes = std::size_t{4} << 20;

/// How long NCCL may take to abort a communicator.
constexpr auto abort_limit = std::chrono::seconds(5);

/// Nobody rings when NCCL has enqueued a group, which usually takes microseconds, so no sleep is
/// longer than the first one, or a 64th of the wait so far.
base::WaitSettings settings_for_a_group(base::WaitSettings settings) {
    settings.sleep_limit = settings.sleep_first;
    settings.long_sleep_limit = std::chrono::milliseconds(10);
    return settings;
}

/// While ranks connect.
constexpr auto between_rounds = std::chrono::milliseconds(10);

/// Joins tensors that are adjacent in memory.
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

}  // namespace

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
/// the others would wait for that rank, so they repeatedly exchange their state.
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

/// Throws the cause if the job ends within that time.
void NcclPath::wait_for_end(std::chrono::milliseconds limit) const {
    auto waiting = deps_.group;
    waiting.deadline = base::Clock::now() + limit;
    try {
        waiting.wait_until([] { return false; });
    } catch (const base::DeadlinePassed&) {  // NOLINT(bugprone-empty-catch): that was meant
    }
}

/// Returns when NCCL has enqueued the calls, so that later work is behind them.
void NcclPath::group(const std::function<void(device::NcclCommunicator&)>& calls) {
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

/// Depends only on sizes and dtypes, since the ranks must make the same calls in the same groups
/// wherever their tensors lie.
std::vector<NcclPath::Round> NcclPath::rounds_of(const engine::Bundle& bundle) {
    std::vector<Round> rounds(1);
    std::size_t packed = 0;
    for (const auto& entry : bundle.entries) {
        const auto memory = entry.tensor.memory();
        if (memory.empty()) continue;
        const auto dtype =
            row_of(bundle.description->operation).has_op ? entry.tensor.dtype : DType::u8;
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

/// A copy of memory onto itself finishes it in place.
void NcclPath::copy(std::vector<device::Copy> copies, const device::Finish& finish,
                    device::Stream& stream) {
    if (finish.is_identity())
        std::erase_if(copies, [](const auto& each) { return each.to.data() == each.from.data(); });
    deps_.driver->copy_all(stream, copies, finish);
}

void NcclPath::pack(const Round& round, const device::Finish& finish, device::Stream& stream) {
    copy(copies_of(round, false), finish, stream);
}

void NcclPath::unpack(const Round& round, const device::Finish& finish, device::Stream& stream) {
    copy(copies_of(round, true), finish, stream);
}

/// Packed tensors are copied separately even if they touch, since a CUDA copy must not reach from
/// one allocation into the next.
std::vector<device::Copy> NcclPath::copies_of(const Round& round, bool back) {
    std::vector<device::Copy> copies;
    for (const auto& fused : round) {
        auto rest = fused.memory;
        const auto add = [&](std::span<std::byte> tensor) {
            const auto moved = rest.first(tensor.size());
            copies.push_back({back ? tensor : moved, back ? moved : tensor, fused.dtype});
            rest = rest.subspan(tensor.size());
        };
        if (fused.is_in_place())
            add(fused.memory);
        else
            std::ranges::for_each(fused.tensors, add);
    }
    return copies;
}

/// The tensors themselves if there is no scale, since inputs must not change.
std::vector<std::span<std::byte>> NcclPath::scaled_inputs(const engine::Bundle& bundle,
                                                          device::Stream& stream) {
    std::vector<std::span<std::byte>> inputs;
    std::size_t bytes = 0;
    for (const auto& entry : bundle.entries) {
        inputs.push_back(entry.tensor.memory());
        bytes += room_for({.bytes = inputs.back().size()});
    }
    if (bundle.description->prescale == 1) return inputs;
    auto rest = scratch(bytes);
    std::vector<device::Copy> copies;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto scaled = take(rest, inputs[i].size());
        copies.push_back({scaled, inputs[i], bundle.entries[i].tensor.dtype});
        inputs[i] = scaled;
    }
    deps_.driver->copy_all(stream, copies, {.scale = bundle.description->prescale});
    return inputs;
}

std::span<std::byte> NcclPath::scratch(std::size_t bytes) {
    const auto have = scratch_.empty() ? 0 : scratch_.back().memory.size();
    if (bytes > have)
        scratch_.push_back(
            device::allocate_owned(deps_.driver, deps_.device, std::max(bytes, 2 * have)));
    return scratch_.empty() ? std::span<std::byte>() : scratch_.back().memory;
}

// --- operations ----------------------------------------------------------------------------------

template <>
void NcclPath::move<OperationKind::allreduce>(const engine::Bundle& bundle,
                                              device::Stream& stream) {
    for (auto& round : rounds_of(bundle)) {
        find_memory(round);
        pack(round, {.scale = bundle.description->prescale}, stream);
        group([&](device::NcclCommunicator& nccl) {
            for (const auto& fused : round)
                nccl.allreduce(stream, {bundle.description->op, fused.dtype}, fused.memory);
        });
        unpack(round, finish_of(bundle), stream);
    }
}

template <>
void NcclPath::move<OperationKind::broadcast>(const engine::Bundle& bundle,
                                              device::Stream& stream) {
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

template <>
void NcclPath::move<OperationKind::all_gather>(const engine::Bundle& bundle,
                                               device::Stream& stream) {
    move_rows(bundle, stream, [&](device::NcclCommunicator& nccl, const RowsTensor& tensor) {
        if (are_equal(tensor.rows)) {
            if (!tensor.into.empty()) nccl.all_gather(stream, tensor.into, tensor.from);
            return;
        }
        const auto blocks = cut_rows(tensor.into, tensor.rows, tensor.row_bytes);
        for (std::size_t rank = 0; rank < blocks.size(); ++rank)
            if (!blocks[rank].empty())
                nccl.broadcast(stream, blocks[rank], tensor.from, static_cast<int>(rank));
    });
}

template <>
void NcclPath::move<OperationKind::all_to_all>(const engine::Bundle& bundle,
                                               device::Stream& stream) {
    move_rows(bundle, stream, [&](device::NcclCommunicator& nccl, const RowsTensor& tensor) {
        const auto given = cut_rows(tensor.from, tensor.splits, tensor.row_bytes),
                   taken = cut_rows(tensor.into, tensor.rows, tensor.row_bytes);
        for (std::size_t rank = 0; rank < given.size(); ++rank) {
            if (!given[rank].empty()) nccl.send(stream, given[rank], static_cast<int>(rank));
            if (!taken[rank].empty()) nccl.receive(stream, taken[rank], static_cast<int>(rank));
        }
    });
}

template <>
void NcclPath::move<OperationKind::reduce_scatter>(const engine::Bundle& bundle,
                                                   device::Stream& stream) {
    std::vector<device::Copy> sums;
    move_rows(bundle, stream, [&](device::NcclCommunicator& nccl, const RowsTensor& tensor) {
        const device::Reduction reduction{bundle.description->op, tensor.dtype};
        sums.push_back({tensor.into, tensor.into, tensor.dtype});
        const auto rows = reduce_scatter_rows(tensor.input_rows, tensor.splits, ranks());
        if (are_equal(rows)) {
            if (!tensor.into.empty())
                nccl.reduce_scatter(stream, reduction, tensor.into, tensor.from);
            return;
        }
        const auto blocks = cut_rows(tensor.from, rows, tensor.row_bytes);
        for (std::size_t rank = 0; rank < blocks.size(); ++rank)
            if (!blocks[rank].empty())
                nccl.reduce(stream, reduction, tensor.into, blocks[rank], static_cast<int>(rank));
    });
    copy(std::move(sums), finish_of(bundle), stream);
}

template <class Call>
void NcclPath::move_rows(const engine::Bundle& bundle, device::Stream& stream, const Call& call) {
    const auto rows = deps_.results.rows_of(bundle);
    const auto inputs = scaled_inputs(bundle, stream);
    std::vector<RowsTensor> tensors;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto& entry = bundle.entries[i];
        tensors.push_back({.dtype = entry.tensor.dtype,
                           .row_bytes = row_bytes(entry.tensor),
                           .from = inputs[i],
                           .into = deps_.results.memory_for(entry, rows[i]),
                           .splits = entry.splits,
                           .rows = rows[i],
                           .input_rows = entry.tensor.shape[0]});
    }
    group([&](device::NcclCommunicator& nccl) {
        for (const auto& tensor : tensors) call(nccl, tensor);
    });
}

bool NcclPath::moves(const engine::Bundle& bundle) noexcept {
    bool moves = false;
    visit(bundle.description->operation, [&]<OperationKind kind>() {
        moves =
            requires(NcclPath& path, device::Stream& stream) { path.move<kind>(bundle, stream); };
    });
    if (!moves || !row_of(bundle.description->operation).has_op) return moves;
    return !bundle.policy.reproducible &&
           std::ranges::all_of(bundle.entries, [&](const engine::BundleEntry& entry) {
               return device::is_in_nccl(bundle.description->op, entry.tensor.dtype);
           });
}

void NcclPath::enqueue(std::shared_ptr<engine::StreamBundle> given, device::Stream& stream) {
    communicator()->watch(given);
    deps_.order.begin_alone(stream);
    const auto& bundle = given->bundle();
    visit(bundle.description->operation, [&]<OperationKind kind>() {
        if constexpr (requires { move<kind>(bundle, stream); })
            move<kind>(bundle, stream);
        else
            throw Error(ErrorCode::internal, "no operation of NCCL's");
    });
    deps_.order.end_alone(stream);
}

}  // namespace guozhuang::backends
