#include "backends/device/staged_path.hpp"

#include <algorithm>
#include <array>
#include <guozhuang/error.hpp>
#include <utility>

namespace guozhuang::backends {
namespace {

// Large enough that a copy takes longer than its launch, small enough that the first one is done
// soon. The same on all ranks.
constexpr std::size_t slot_bytes = std::size_t{2} << 20;
constexpr std::size_t slots = 4;

/// Whether its tensors can be moved in parts.
bool can_be_cut(const engine::Bundle& bundle) {
    return row_of(bundle.description->operation).in_place &&
           bundle.description->op != ReduceOp::adasum;
}

/// Without such memory fragments are copied one by one: this path must always work.
device::OwnedMemory allocate_if_possible(const std::shared_ptr<device::Driver>& driver, int device,
                                         std::size_t bytes) try {
    return device::allocate_owned(driver, device, bytes);
} catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
    return {};
}

}  // namespace

StagedPath::StagedPath(Dependencies dependencies)
    : deps_(std::move(dependencies)),
      out_(deps_.driver->make_stream(deps_.device)),
      slots_(device::allocate_pinned(deps_.driver, deps_.device, slots * slot_bytes)),
      packed_(allocate_if_possible(deps_.driver, deps_.device, slots * slot_bytes)) {}

void StagedPath::enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) {
    auto chunks = chunks_of_bundle(bundle->bundle());
    HostMover::Load load{.bundle = std::move(bundle), .chunks = {}, .backend = *deps_.backend};
    for (auto& chunk : chunks) load.chunks.push_back(std::move(chunk.host));
    const auto first = deps_.mover.add(std::move(load));
    if (chunks.empty()) return;
    try {
        copy(chunks, first, stream);
    } catch (...) {
        try {
            stream.wait(out_->record());
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error is thrown
        }
        throw;
    }
}

void StagedPath::copy(std::span<const Chunk> chunks, std::uint32_t first, device::Stream& stream) {
    std::array<std::shared_ptr<device::Event>, slots> is_out;  // of the last chunk in each slot
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
        const auto number = first + static_cast<std::uint32_t>(chunk);
        auto& is_free = is_out[chunk % slots];
        if (is_free) stream.wait(is_free);
        copy_in(chunks[chunk], number, stream);
        // The word that it waits for implies that, but CUDA must know the order of its streams.
        out_->wait(stream.record());
        is_free = copy_out(chunks[chunk], number);
    }
    stream.wait(is_out[(chunks.size() - 1) % slots]);
}

void StagedPath::copy_in(const Chunk& chunk, std::uint32_t number, device::Stream& stream) {
    deps_.driver->copy_all(stream, chunk.pack, {});
    for (const auto& [device, host] : chunk.in) deps_.driver->copy(stream, host, device);
    deps_.mover.announce(stream, number);
}

/// Returns its end.
std::shared_ptr<device::Event> StagedPath::copy_out(const Chunk& chunk, std::uint32_t number) {
    deps_.mover.wait_for(*out_, number);
    for (const auto& [device, host] : chunk.out) deps_.driver->copy(*out_, device, host);
    deps_.driver->copy_all(*out_, chunk.unpack, {});
    return out_->record();
}

std::vector<StagedPath::Chunk> StagedPath::chunks_of_bundle(const engine::Bundle& bundle) {
    std::vector<Chunk> chunks;
    if (!can_be_cut(bundle)) {
        chunks.push_back(whole(bundle));
        return chunks;
    }
    std::vector<std::size_t> bytes;
    for (const auto& entry : bundle.entries) bytes.push_back(entry.tensor.bytes());
    for (const auto& fragments : chunks_of(bytes, slot_bytes))
        chunks.push_back(chunk_of(bundle, fragments, chunks.size() % slots * slot_bytes));
    return chunks;
}

/// Several fragments are packed on the device, by one kernel, and go over the link as one. `slot`
/// is the offset of the chunk's memory.
StagedPath::Chunk StagedPath::chunk_of(const engine::Bundle& bundle,
                                       std::span<const Fragment> fragments,
                                       std::size_t slot) const {
    Chunk chunk{
        .in = {}, .out = {}, .pack = {}, .unpack = {}, .host = {{}, {}, without_tensors(bundle)}};
    auto& [tensors, results, on_the_host] = chunk.host;
    const auto& operation = row_of(bundle.description->operation);
    const bool is_from_root = operation.has_root && !operation.has_op;
    const bool gives = !is_from_root || bundle.root == deps_.rank,
               takes = !is_from_root || bundle.root != deps_.rank;
    const bool packs = fragments.size() > 1 && !packed_.memory.empty();
    const auto packed = packs ? packed_.memory.subspan(slot, slot_bytes) : packed_.memory;
    const auto memory = slots_.memory.subspan(slot, slot_bytes);
    std::vector<Transfer> transfers;
    std::size_t next = 0;
    for (const auto& fragment : fragments) {
        const auto& tensor = bundle.entries[fragment.tensor].tensor;
        const auto device = tensor.memory().subspan(fragment.first, fragment.bytes);
        if (packs && gives)
            chunk.pack.push_back({packed.subspan(next, fragment.bytes), device, tensor.dtype});
        if (packs && takes)
            chunk.unpack.push_back({device, packed.subspan(next, fragment.bytes), tensor.dtype});
        if (!packs) transfers.push_back({device, memory.subspan(next, fragment.bytes)});
        tensors.emplace_back(
            memory.data() + next, tensor.dtype,
            Shape{static_cast<std::int64_t>(fragment.bytes / size_of(tensor.dtype))});
        next += room_for(fragment);
    }
    if (packs) transfers.push_back({packed.first(next), memory.first(next)});
    for (const auto& tensor : tensors) on_the_host.entries.push_back({.tensor = tensor});
    if (gives) chunk.in = transfers;
    if (takes) chunk.out = transfers;
    return chunk;
}

/// A bundle whose tensors cannot be cut, as one chunk. If it has results, their sizes must be known
/// before anything can be enqueued.
StagedPath::Chunk StagedPath::whole(const engine::Bundle& bundle) {
    Chunk chunk{
        .in = {}, .out = {}, .pack = {}, .unpack = {}, .host = {{}, {}, without_tensors(bundle)}};
    auto& [tensors, results, on_the_host] = chunk.host;
    const auto rows = deps_.results.rows_of(bundle);
    std::vector<std::span<std::byte>> outputs;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
        const auto& entry = bundle.entries[i];
        outputs.push_back(rows.empty() ? entry.tensor.memory()
                                       : deps_.results.memory_for(entry, rows[i]));
        bytes += room_for({.bytes = entry.tensor.bytes()});
        if (!rows.empty()) bytes += room_for({.bytes = outputs.back().size()});
    }
    auto rest = memory_for_whole(bytes);
    tensors.reserve(bundle.entries.size());
    results.resize(bundle.entries.size());
    for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
        const auto& [tensor, splits, result, output] = bundle.entries[i];
        const auto host = take(rest, tensor.bytes());
        chunk.in.push_back({tensor.memory(), host});
        const auto out = rows.empty() ? host : take(rest, outputs[i].size());
        chunk.out.push_back({outputs[i], out});
        const auto& staged = tensors.emplace_back(host.data(), tensor.dtype, tensor.shape);
        on_the_host.entries.push_back({.tensor = staged,
                                       .splits = splits,
                                       .result = rows.empty() ? nullptr : &results[i],
                                       .output = out});
    }
    return chunk;
}

/// The stream may still use memory that has become too small, so all of it is kept; each is twice
/// as large as the one before.
std::span<std::byte> StagedPath::memory_for_whole(std::size_t bytes) {
    const auto have = whole_.empty() ? 0 : whole_.back().memory.size();
    if (bytes > have)
        whole_.push_back(device::allocate_pinned(deps_.driver, deps_.device,
                                                 std::max({bytes, 2 * have, slot_bytes})));
    return whole_.empty() ? std::span<std::byte>() : whole_.back().memory;
}

}  // namespace guozhuang::backends
