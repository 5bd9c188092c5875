#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "support/oracles/scalar_reduce.hpp"
#include "support/tensors/bundle_tensors.hpp"

/// The result that an allreduce must leave on every rank, bit for bit: one loop adds up the inputs
/// of all ranks in the order that the algorithm promises, then divides.
namespace guozhuang::test {

/// The serial reference of order class tree, one element after another.
template <class Format>
BundleTensors<typename Format::Element> tree_sum(const ByRank<typename Format::Element>& inputs,
                                                 typename Format::Partial divisor) {
    const ScalarReduce<Format> reduce(divisor);
    auto result = inputs[0];
    for (std::size_t tensor = 0; tensor < result.size(); ++tensor) {
        std::vector<std::span<const std::byte>> terms;
        for (const auto& input : inputs) terms.push_back(std::as_bytes(std::span(input[tensor])));
        reduce.combine_tree(std::as_writable_bytes(std::span(result[tensor])), terms);
    }
    return result;
}

/// The serial reference of order class ring: an element of block b of its tensor is summed
/// b+1, b+2, ..., b.
template <class Format>
BundleTensors<typename Format::Element> ring_sum(const ByRank<typename Format::Element>& inputs,
                                                 typename Format::Partial divisor) {
    const ScalarReduce<Format> reduce(divisor);
    const auto ranks = inputs.size();
    auto result = inputs[0];
    for (std::size_t tensor = 0; tensor < result.size(); ++tensor) {
        const auto count = result[tensor].size();
        for (std::size_t block = 0, begin = 0; block < ranks; ++block) {
            const auto length = count / ranks + (block < count % ranks ? 1 : 0);
            const auto part = [&](std::size_t rank) {
                return std::as_bytes(
                    std::span(inputs[rank % ranks][tensor]).subspan(begin, length));
            };
            const auto into =
                std::as_writable_bytes(std::span(result[tensor]).subspan(begin, length));
            if (length != 0) std::memcpy(into.data(), part(block + 1).data(), into.size());
            for (std::size_t step = 2; step <= ranks; ++step)
                reduce.combine(into, into, part(block + step));
            reduce.finish(into);
            begin += length;
        }
    }
    return result;
}

}  // namespace guozhuang::test
