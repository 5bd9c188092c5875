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
    filled,  ///< what the others read is in place
    passed,  ///< in a ring: so is what has come by each hop
    taken    ///< the others have read it, and written what they write
};

/// The `time`-th arrival of a stream at a phase.
struct Moment {
    Phase phase = Phase::filled;
    std::uint32_t time = 0;
};

/// A backend lends this to one operation on tensors of a device, on one rank. All that it does is
/// enqueued on a stream of that device, and nobody waits for it but the streams of the ranks for
/// each other. Each rank has an arena, in two halves: while a chunk of the tensors is in one half
/// of each, the next one is put into the other.
///
/// `tensor` describes a tensor. `rows` are the rows of each tensor's result, by the rank that they
/// come from (a reduce_scatter has one number, the rows of this rank), `result` is the memory of
/// one, and `gather` exchanges numbers: these three may wait for the other ranks.
///
/// `half` is one of the halves of a rank's arena, of half_bytes(). `copy` copies what the elements
/// of Copies say, `copy_prescaled` multiplies it by the prescale. `reduce` makes one of the inputs
/// and puts it into all outputs, divided and scaled; `add` does so without that. `take_numbers`
/// numbers so many chunks among all of this set, and returns the first number.
///
/// `announce_to` tells a rank that this stream has come to a moment, and `wait_for` makes this
/// stream wait until that of the rank has; `meet` does both with all other ranks.
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
