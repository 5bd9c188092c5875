#pragma once

#include <span>

#include "collectives/direct/allreduce.hpp"
#include "collectives/recursive/doubling_allreduce.hpp"
#include "collectives/ring/allreduce.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "support/cases/bundles.hpp"

/// Every allreduce over the same arguments, with exactly the scratch it says it needs.
namespace guozhuang::test {

using MemberSpans = std::span<const std::span<std::byte>>;

/// The plain ring knows no bundles: one member after another, which is what fusion must not differ
/// from.
template <Wire W>
void plain_ring(W& wire, MemberSpans members, const Reduce& reduce, std::size_t) {
    for (const auto& member : members) {
        const Blocks blocks({&member, 1}, reduce.element_bytes(), wire.size());
        std::vector<std::span<std::byte>> spans;
        for (int block = 0; block < blocks.count(); ++block)
            spans.push_back(blocks.in_place(blocks.whole(block)));
        TestScratch inbox(blocks.largest_bytes());
        ring::allreduce(wire, spans, inbox.span(), reduce);
    }
}

template <Wire W>
void pipelined_ring(W& wire, MemberSpans members, const Reduce& reduce, std::size_t segment_bytes) {
    const Blocks blocks(members, reduce.element_bytes(), wire.size());
    TestScratch scratch(ring::pipelined_scratch_bytes(blocks, segment_bytes));
    ring::pipelined_allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

template <Wire W>
void direct_exchange(W& wire, MemberSpans members, const Reduce& reduce,
                     std::size_t segment_bytes) {
    const Blocks blocks(members, reduce.element_bytes(), wire.size());
    TestScratch scratch(direct::allreduce_scratch_bytes<W>(blocks, wire.size(), segment_bytes));
    direct::allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

template <Wire W>
void recursive_doubling(W& wire, MemberSpans members, const Reduce& reduce, std::size_t) {
    const Blocks blocks(members, reduce.element_bytes(), 1);
    TestScratch scratch(recursive::doubling_scratch_bytes<W>(blocks, reduce, wire.size()));
    recursive::doubling_allreduce(wire, {blocks, scratch.span(), reduce});
}

/// The direct exchange of one block, which is rank 0's.
template <Wire W>
void one_server(W& wire, MemberSpans members, const Reduce& reduce, std::size_t segment_bytes) {
    const Blocks blocks(members, reduce.element_bytes(), 1);
    TestScratch scratch(direct::allreduce_scratch_bytes<W>(blocks, wire.size(), segment_bytes));
    direct::allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

}  // namespace guozhuang::test
