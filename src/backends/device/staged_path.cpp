#include "backends/device/staged_path.hpp"

#include <algorithm>
#include <array>
#include <guozhuang/error.hpp>
#include <limits>
#include <pthread.h>
#include <system_error>
#include <utility>

#include "base/process.hpp"

namespace guozhuang::backends {
namespace {

using protocol::OperationKind;

// Large enough that a copy takes longer than its start, small enough that the first is soon there.
// The same on all ranks.
constexpr std::size_t slot_bytes = std::size_t{2} << 20;
constexpr std::size_t slots = 4;

/// Whether parts of its tensors can be moved one after the other.
bool can_be_cut(const engine::Bundle& bundle) {
    return bundle.operation == OperationKind::broadcast ||
           (bundle.operation == OperationKind::allreduce && bundle.op != ReduceOp::adasum);
}

}  // namespace

StagedPath::StagedPath(Dependencies dependencies)
    : of_(std::move(dependencies)),
      wait_(base::settings_for_words(of_.wait)),
      out_(of_.driver->make_stream(of_.device)),
      slots_(of_.driver, of_.device, slots * slot_bytes),
      copied_in_(of_.driver, of_.device),
      moved_(of_.driver, of_.device) {
    try {
        thread_ = std::thread([this] { move_loads(); });
        pthread_setname_np(thread_.native_handle(), "gz-staging");
    } catch (const std::system_error& error) {
        throw Error(ErrorCode::out_of_memory,
                    std::string("no thread to move tensors of a device by way of the host: ") +
                        error.what());
    }
}

StagedPath::~StagedPath() {
    stop();
}

void StagedPath::stop() noexcept {
    stopped_ = true;
    base::ring_local(bell_);
    base::join(thread_);
}

/// Past the number of every chunk that is or will be waited for.
void StagedPath::release() noexcept {
    if (!released_.exchange(true))
        device::advance(*moved_, std::numeric_limits<std::int32_t>::max() / 2);
}

// --- on the thread that drives -------------------------------------------------------------------

void StagedPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    const auto load = std::make_shared<Load>(load_of(std::move(bundle)));
    const auto chunks = load->chunks.size();
    if (chunks == 0) return;
    enqueued_ += static_cast<std::uint32_t>(chunks);
    {
        const base::Lock lock(mutex_);
        loads_.push_back(load);
    }
    base::ring_local(bell_);
    try {
        copy(*load, stream);
    } catch (...) {
        try {
            stream.wait(out_->record());
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error is thrown
        }
        throw;
    }
}

void StagedPath::copy(const Load& load, device::Stream& stream) {
    std::array<std::shared_ptr<device::Event>, slots> is_out;  // of the last chunk in each slot
    for (std::size_t chunk = 0; chunk < load.chunks.size(); ++chunk) {
        auto& is_free = is_out[chunk % slots];
        if (is_free) stream.wait(is_free);
        copy_in(load, chunk, stream);
        // The word that it waits for says so too, but CUDA must know the order of its streams.
        out_->wait(stream.record());
        is_free = copy_out(load, chunk);
    }
    stream.wait(is_out[(load.chunks.size() - 1) % slots]);
}

void StagedPath::copy_in(const Load& load, std::size_t chunk, device::Stream& stream) {
    for (const auto& [device, host] : load.chunks[chunk].in) of_.driver->copy(stream, host, device);
    of_.driver->write(stream, *copied_in_, load.first + static_cast<std::uint32_t>(chunk) + 1);
}

/// Returns its end.
std::shared_ptr<device::Event> StagedPath::copy_out(const Load& load, std::size_t chunk) {
    of_.driver->wait(*out_, *moved_, load.first + static_cast<std::uint32_t>(chunk) + 1);
    for (const auto& [device, host] : load.chunks[chunk].out) of_.driver->copy(*out_, device, host);
    return out_->record();
}

StagedPath::Load StagedPath::load_of(std::shared_ptr<engine::StreamBundle> given) {
    Load load{.bundle = std::move(given), .chunks = {}, .first = enqueued_};
    const auto& bundle = load.bundle->bundle();
    if (!can_be_cut(bundle)) {
        load.chunks.push_back(whole(bundle));
        return load;
    }
    std::vector<std::size_t> bytes;
    for (const auto& entry : bundle.entries) bytes.push_back(entry.tensor.bytes());
    for (const auto& fragments : chunks_of(bytes, slot_bytes)) {
        const auto number = load.first + static_cast<std::uint32_t>(load.chunks.size());
        load.chunks.push_back(chunk_of(bundle, fragments, slot(number)));
    }
    return load;
}

std::span<std::byte> StagedPath::slot(std::uint32_t chunk) const {
    return slots_.memory().subspan(chunk % slots * slot_bytes, slot_bytes);
}

/// Fragments that follow each other on the device do so in the slot as well, and are copied as one.
StagedPath::Chunk StagedPath::chunk_of(const engine::Bundle& bundle,
                                       std::span<const Fragment> fragments,
                                       std::span<std::byte> memory) const {
    Chunk chunk{.in = {}, .out = {}, .tensors = {}, .results = {}, .bundle = on_host(bundle)};
    std::vector<Transfer> all;
    std::size_t next = 0;
    for (const auto& fragment : fragments) {
        const auto& tensor = bundle.entries[fragment.tensor].tensor;
        const auto device = tensor.memory().subspan(fragment.first, fragment.bytes);
        const bool follows = !all.empty() &&
                             all.back().device.data() + all.back().device.size() == device.data() &&
                             (all.back().host.size()) % size_of(tensor.dtype) == 0;
        if (!follows) {
            next = room_for({.bytes = next});
            all.push_back({device.first(0), memory.subspan(next, 0)});
        }
        auto& transfer = all.back();
        transfer.device = {transfer.device.data(), transfer.device.size() + fragment.bytes};
        transfer.host = {transfer.host.data(), transfer.host.size() + fragment.bytes};
        chunk.tensors.emplace_back(
            memory.data() + next, tensor.dtype,
            Shape{static_cast<std::int64_t>(fragment.bytes / size_of(tensor.dtype))});
        next += fragment.bytes;
    }
    for (const auto& tensor : chunk.tensors) chunk.bundle.entries.push_back({.tensor = tensor});
    const bool is_broadcast = bundle.operation == OperationKind::broadcast;
    if (!is_broadcast || bundle.root == of_.rank) chunk.in = all;
    if (!is_broadcast || bundle.root != of_.rank) chunk.out = all;
    return chunk;
}

/// A bundle whose tensors cannot be cut, as one chunk. Where it has results, their sizes must be
/// known before anything can be enqueued.
StagedPath::Chunk StagedPath::whole(const engine::Bundle& bundle) {
    Chunk chunk{.in = {}, .out = {}, .tensors = {}, .results = {}, .bundle = on_host(bundle)};
    const auto rows = of_.results.rows_of(bundle);
    std::vector<std::span<std::byte>> outputs;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
        const auto& entry = bundle.entries[i];
        outputs.push_back(rows.empty() ? entry.tensor.memory()
                                       : of_.results.memory_for(entry, rows[i]));
        bytes += room_for({.bytes = entry.tensor.bytes()});
        if (!rows.empty()) bytes += room_for({.bytes = outputs.back().size()});
    }
    auto rest = memory_for_whole(bytes);
    chunk.tensors.reserve(bundle.entries.size());
    chunk.results.resize(bundle.entries.size());
    for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
        const auto& [tensor, splits, result, output] = bundle.entries[i];
        const auto host = take(rest, tensor.bytes());
        chunk.in.push_back({tensor.memory(), host});
        const auto out = rows.empty() ? host : take(rest, outputs[i].size());
        chunk.out.push_back({outputs[i], out});
        const auto& staged = chunk.tensors.emplace_back(host.data(), tensor.dtype, tensor.shape);
        chunk.bundle.entries.push_back({.tensor = staged,
                                        .splits = splits,
                                        .result = rows.empty() ? nullptr : &chunk.results[i],
                                        .output = out});
    }
    return chunk;
}

/// The stream may still use what has become too small, so it is kept, and each is twice as large as
/// the one before.
std::span<std::byte> StagedPath::memory_for_whole(std::size_t bytes) {
    const auto have = whole_.empty() ? 0 : whole_.back().memory().size();
    if (bytes > have)
        whole_.emplace_back(of_.driver, of_.device, std::max({bytes, 2 * have, slot_bytes}));
    return whole_.empty() ? std::span<std::byte>() : whole_.back().memory();
}

// --- on the thread of this path ------------------------------------------------------------------

void StagedPath::move_loads() {
    while (const auto load = next_load()) {
        const bool moved = load->bundle->attempt([&] { move(*load); });
        load->bundle.reset();
        if (moved) continue;
        failed_ = load;
        return;  // the job is over
    }
}

/// Null when this path ends.
std::shared_ptr<StagedPath::Load> StagedPath::next_load() {
    base::WaitLoop wait_loop(bell_, wait_);
    while (!stopped_) {
        {
            const base::Lock lock(mutex_);
            if (!loads_.empty()) {
                auto load = std::move(loads_.front());
                loads_.pop_front();
                return load;
            }
        }
        wait_loop.park_idle();
    }
    return nullptr;
}

/// Waits at a bell of its own, since whatever rings the rank's says nothing of the device's.
bool StagedPath::is_copied_in(std::uint32_t chunks) const {
    if (base::is_aborted(of_.doorbell)) base::throw_cause(of_.doorbell);
    if (stopped_) throw Error(ErrorCode::aborted, "the session has ended");
    return device::has_reached((*copied_in_).load(std::memory_order_acquire), chunks);
}

void StagedPath::move(Load& load) {
    auto number = load.first;
    for (auto& chunk : load.chunks) {
        ++number;
        base::wait_until(bell_, wait_, [&] { return is_copied_in(number); });
        of_.mover->run(chunk.bundle);
        device::advance(*moved_, 1);
    }
}

}  // namespace guozhuang::backends
