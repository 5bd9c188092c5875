#pragma once

#include <span>

#include "collectives/direct/allreduce.hpp"
#include "collectives/recursive/doubling_allreduce.hpp"
#include "collectives/ring/allreduce.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "support/cases/bundles.hpp"

/// Every allreduce over the same arguments, with exactly the scratch it says it needs.
namespace guozhuang::test {

using TensorSpans = std::span<const std::span<std::byte>>;

/// The plain ring knows no bundles: one tensor after another, which is what fusion must not differ
/// from.
template <Wire W>
void plain_ring(W& wire, TensorSpans tensors, const Reduce& reduce, std::size_t) {
    for (const auto& tensor : tensors) {
        const Blocks blocks({&tensor, 1}, reduce.element_bytes(), wire.size());
        std::vector<std::span<std::byte>> spans;
        for (int block = 0; block < blocks.count(); ++block)
            spans.push_back(blocks.in_place(blocks.whole(block)));
        TestScratch inbox(blocks.largest_bytes());
        ring::allreduce(wire, spans, inbox.span(), reduce);
    }
}

template <Wire W>
void pipelined_ring(W& wire, TensorSpans tensors, const Reduce& reduce, std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), wire.size());
    TestScratch scratch(ring::pipelined_scratch_bytes(blocks, segment_bytes));
    ring::pipelined_allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

template <Wire W>
void direct_exchange(W& wire, TensorSpans tensors, const Reduce& reduce,
                     std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), wire.size());
    TestScratch scratch(direct::allreduce_scratch_bytes<W>(blocks, wire.size(), segment_bytes));
    direct::allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

template <Wire W>
void recursive_doubling(W& wire, TensorSpans tensors, const Reduce& reduce, std::size_t) {
    const Blocks blocks(tensors, reduce.element_bytes(), 1);
    TestScratch scratch(recursive::doubling_scratch_bytes<W>(blocks, reduce, wire.size()));
    recursive::doubling_allreduce(wire, {blocks, scratch.span(), reduce});
}

/// The direct exchange of one block, which is rank 0's.
template <Wire W>
void one_server(W& wire, TensorSpans tensors, const Reduce& reduce, std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), 1);
    TestScratch scratch(direct::allreduce_scratch_bytes<W>(blocks, wire.size(), segment_bytes));
    direct::allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

}  // namespace guozhuang::test
