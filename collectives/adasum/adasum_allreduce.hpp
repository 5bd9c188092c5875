// Adasum allreduce: tensors are added up by the adaptive rule
//
//   Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
//
// which takes from each side half of what it shares with the other: orthogonal gradients are
// summed, parallel ones averaged.
//
// S. Maleki, M. Musuvathi, T. Mytkowicz et al.: Scaling distributed training with adaptive
// summation, MLSys 2021. Their algorithm halves vectors, adds up the dot products of the halves by
// an allreduce in each step, and needs a power of two ranks. Here recursive doubling swaps whole
// tensors: so dot products need no messages, and any number of ranks will do. Two ranks move the
// same bytes either way.
//
//           rank 0     rank 1     rank 2
//   step 0  0 -> 1     1 -> 0     2 -> 0
//   step 1  0+1 -> 2              2 -> 1
//   end     0+1+2      0+1+2      0+1+2
//
// Cost: ceil(log2 p) (alpha + n beta + 4 n gamma), for three dot products and a sum; a rank of a
// short group sends to several partners, one after another.
// Order: the balanced binary tree over rank index, split at the largest power of two below the
// count (the rule is not associative). Every rank computes the same pairs, of f16 and bf16 in f32,
// and the result is rounded once.
// Needs: allreduce_scratch_bytes: the bundle twice, as partials.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/concepts/reduce.hpp"
#include "collectives/concepts/wire.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/recursive/doubling_allreduce.hpp"

namespace guozhuang::adasum {

/// into = Adasum(left, right) on the partials of one whole tensor, the same bits on every rank.
/// `into` may be `left` or `right`.
using PairRule = void (*)(std::span<std::byte> into, std::span<const std::byte> left,
                          std::span<const std::byte> right);

struct Args {
    /// The tensors of the bundle, reduced in place, each by itself.
    std::span<const std::span<std::byte>> tensors;
    /// Memory of at least allreduce_scratch_bytes, aligned to scratch_alignment.
    std::span<std::byte> scratch;
    /// Converts and finishes; its op does not matter.
    const Reduce& reduce;
    PairRule pair;
};

inline std::size_t partial_bytes_of(std::size_t element_bytes, const Reduce& reduce) noexcept {
    return element_bytes / reduce.element_bytes() * reduce.partial_bytes();
}

inline std::size_t partial_bytes_of(std::span<const std::span<std::byte>> tensors,
                                    const Reduce& reduce) noexcept {
    std::size_t bytes = 0;
    for (const auto tensor : tensors) bytes += partial_bytes_of(tensor.size(), reduce);
    return bytes;
}

template <Wire W>
std::size_t allreduce_scratch_bytes(std::span<const std::span<std::byte>> tensors,
                                    const Reduce& reduce, int ranks) {
    return 2 * padded(partial_bytes_of(tensors, reduce)) +
           padded_array<typename W::Ticket>(static_cast<std::size_t>(ranks));
}

template <Wire W>
void allreduce(W& wire, const Args& args) {
    const auto bytes = partial_bytes_of(args.tensors, args.reduce);
    if (bytes == 0) return;
    Scratch scratch(args.scratch);
    const auto mine = scratch.cut(bytes), theirs = scratch.cut(bytes);
    const auto tickets =
        scratch.cut_array<typename W::Ticket>(static_cast<std::size_t>(wire.size()));
    const auto for_each_tensor = [&](const auto& visit) {
        std::size_t at = 0;
        for (const auto tensor : args.tensors) {
            const auto length = partial_bytes_of(tensor.size(), args.reduce);
            visit(tensor, at, length);
            at += length;
        }
    };

    for_each_tensor([&](auto tensor, auto at, auto length) {
        args.reduce.widen(mine.subspan(at, length), tensor);
    });
    recursive::double_up(wire, mine, theirs, tickets,
                         [&](std::span<std::byte> into, std::span<const std::byte> left,
                             std::span<const std::byte> right) {
                             for_each_tensor([&](auto, auto at, auto length) {
                                 args.pair(into.subspan(at, length), left.subspan(at, length),
                                           right.subspan(at, length));
                             });
                         });
    for_each_tensor([&](auto tensor, auto at, auto length) {
        args.reduce.narrow(tensor, mine.subspan(at, length));
    });
}

}  // namespace guozhuang::adasum
