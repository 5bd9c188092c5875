#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "collectives/direct/direct_allreduce.hpp"
#include "collectives/recursive/doubling_allreduce.hpp"
#include "collectives/ring/pipelined_allreduce.hpp"
#include "collectives/ring/ring_allreduce.hpp"
#include "support/cases/bundles.hpp"
#include "support/oracles/scalar_reduce.hpp"
#include "support/oracles/serial_sums.hpp"

/// Every allreduce over the same arguments, with exactly the scratch it says it needs.
namespace guozhuang::test {

/// The plain ring knows no bundles: it reduces one tensor after another, and fusion must give the
/// same bits.
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
    TestScratch scratch(ring::pipelined_scratch_bytes(wire, blocks, segment_bytes));
    ring::pipelined_allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

template <Wire W>
void direct_exchange(W& wire, TensorSpans tensors, const Reduce& reduce,
                     std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), wire.size());
    TestScratch scratch(direct::allreduce_scratch_bytes(wire, blocks, segment_bytes));
    direct::allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

template <Wire W>
void recursive_doubling(W& wire, TensorSpans tensors, const Reduce& reduce, std::size_t) {
    const Blocks blocks(tensors, reduce.element_bytes(), 1);
    TestScratch scratch(recursive::doubling_scratch_bytes<W>(blocks, reduce, wire.size()));
    recursive::doubling_allreduce(wire, {blocks, scratch.span(), reduce});
}

/// The direct exchange of one block, which rank 0 owns.
template <Wire W>
void one_server(W& wire, TensorSpans tensors, const Reduce& reduce, std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), 1);
    TestScratch scratch(direct::allreduce_scratch_bytes(wire, blocks, segment_bytes));
    direct::allreduce(wire, {blocks, scratch.span(), reduce, segment_bytes});
}

/// One of the above.
using AllreduceUnderTest =
    std::function<void(ThreadWire&, TensorSpans, const Reduce&, std::size_t segment_bytes)>;

/// Averages random tensors over all group sizes, bundles and segment sizes. Returns a line for each
/// run that does not leave `reference(inputs, ranks)`, bit for bit, on every rank.
template <class Format, class Reference>
std::vector<std::string> mismatches_over_sizes(const AllreduceUnderTest& allreduce,
                                               const Reference& reference) {
    std::vector<std::string> mismatches;
    for (const int ranks : group_sizes) {
        const auto divisor = static_cast<typename Format::Partial>(ranks);
        const ScalarReduce<Format> average(divisor);
        auto runs =
            sweep_runs<Format>(ranks, std::to_string(ranks) + " ranks",
                               [&](const auto& inputs) { return reference(inputs, divisor); });
        for (std::size_t i = 0; i < runs.size(); ++i)
            on_each_rank(runs[i].tensors, [&](ThreadWire& wire, TensorSpans own) {
                // Every other run with more chunks in flight than usual.
                wire.set_window_bytes(i % 2 * 5 * runs[i].segment_bytes);
                allreduce(wire, own, average, runs[i].segment_bytes);
            });
        add_mismatches(mismatches, runs);
    }
    return mismatches;
}

}  // namespace guozhuang::test
