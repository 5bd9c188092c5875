#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <optional>
#include <span>
#include <vector>

#include "collectives/concepts/operation_site.hpp"

namespace guozhuang {

/// Where the streams of the ranks meet.
enum class Phase : std::uint8_t {
    filled,  ///< this rank's half holds what the others read
    passed,  ///< in a ring: the hop's block is in this rank's half
    taken    ///< this rank is done with the peer's half, reads and writes
};

/// The `count`-th arrival of a stream at a phase.
struct Moment {
    Phase phase = Phase::filled;
    std::uint32_t count = 0;
};

/// A backend lends this to one operation on tensors of a device, on one rank. It enqueues all its
/// work on a stream of that device; only the streams of the ranks wait for each other. Each rank
/// has an arena in two halves: while one chunk of the tensors is in one half, the next is written
/// to the other.
///
/// `tensor` describes a tensor. `rows` are the rows of each tensor's result, by the rank that they
/// come from (a reduce_scatter has one number, the rows of this rank). `result` is the memory of
/// one result. `gather` exchanges numbers. `rows` and `gather` may wait for other ranks; `result`
/// may allocate, and so wait for the device.
///
/// `half` is one half of a rank's arena, of half_bytes(). `copy` makes each of the copies, and
/// `copy_prescaled` multiplies by the prescale as well. `reduce` combines the inputs, applies
/// divisor and postscale, and writes the result to every output; `add` only combines.
/// `take_numbers` numbers that many chunks, consecutively in this set, and returns the first
/// number.
///
/// `announce_to` tells a rank that this stream has come to a moment. `wait_for` makes this stream
/// wait until that rank's stream has. `meet` does both with all other ranks.
template <class S>
concept ArenaSite = requires(
    S& site, int rank, std::size_t i, DType dtype, Moment moment, std::optional<Moment> perhaps,
    std::vector<std::int64_t> numbers, typename S::Copies copies,
    std::span<const std::span<std::byte>> outputs, std::vector<std::span<const std::byte>> inputs) {
    { site.rank() } -> std::same_as<int>;
    { site.ranks() } -> std::same_as<int>;
    { site.root() } -> std::same_as<int>;
    { site.tensors() } -> std::same_as<std::size_t>;
    { site.tensor(i) } -> std::same_as<SiteTensor>;
    { site.rows() } -> std::same_as<std::vector<std::vector<std::int64_t>>>;
    { site.result(i, numbers) } -> std::same_as<std::span<std::byte>>;
    { site.gather(numbers) } -> std::same_as<std::vector<std::int64_t>>;
    { site.half_bytes() } -> std::same_as<std::size_t>;
    { site.half(rank, i) } -> std::same_as<std::span<std::byte>>;
    copies.push_back({outputs.front(), inputs.front(), dtype});
    { site.copy(copies) } -> std::same_as<void>;
    { site.copy_prescaled(copies) } -> std::same_as<void>;
    { site.reduce(dtype, outputs, inputs) } -> std::same_as<void>;
    { site.add(dtype, outputs, inputs) } -> std::same_as<void>;
    { site.take_numbers(i) } -> std::same_as<std::uint32_t>;
    { site.announce_to(rank, moment) } -> std::same_as<void>;
    { site.wait_for(rank, moment) } -> std::same_as<void>;
    { site.meet(perhaps, perhaps) } -> std::same_as<void>;
};

}  // namespace guozhuang
