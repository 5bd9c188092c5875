#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/scratch.hpp"
#include "support/fakes/thread_wire.hpp"
#include "support/oracles/scalar_reduce.hpp"

namespace guozhuang::test {

/// The numbers of ranks that the algorithms are tried with: powers of two, their neighbours and odd
/// ones.
inline constexpr int group_sizes[] = {1, 2, 3, 4, 5, 7, 8, 16, 17};

/// A bundle's tensors, on one rank.
template <class Element>
using BundleTensors = std::vector<std::vector<Element>>;

/// Scratch of exactly the size asked for, aligned, with nothing useful in it.
class TestScratch {
public:
    explicit TestScratch(std::size_t bytes)
        : lines_(padded(bytes) / scratch_alignment), bytes_(bytes) {
        if (bytes != 0) std::memset(lines_.data(), 0xCD, padded(bytes));
    }
    std::span<std::byte> span() { return std::as_writable_bytes(std::span(lines_)).first(bytes_); }

private:
    struct alignas(scratch_alignment) Line {
        std::byte bytes[scratch_alignment];
    };
    std::vector<Line> lines_;
    std::size_t bytes_;
};

template <class Element>
std::vector<std::span<std::byte>> spans_of(BundleTensors<Element>& tensors) {
    std::vector<std::span<std::byte>> spans;
    for (auto& tensor : tensors) spans.push_back(std::as_writable_bytes(std::span(tensor)));
    return spans;
}

/// Numbers whose sum depends on the order of addition where their type rounds.
template <class Format>
std::vector<typename Format::Element> numbers(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<typename Format::Element> elements(count);
    for (auto& element : elements) {
        if constexpr (std::is_integral_v<typename Format::Partial>) {
            element = static_cast<typename Format::Element>(random() >> 8);
        } else {
            const auto mantissa = std::uniform_real_distribution<float>(-1, 1)(random);
            element = Format::narrow(std::ldexp(mantissa, static_cast<int>(random() % 12)));
        }
    }
    return elements;
}

/// Every rank's tensors: [rank][tensor][element]. A tensor's numbers do not depend on the other
/// tensors.
template <class Format>
std::vector<BundleTensors<typename Format::Element>> inputs_of(
    int ranks, const std::vector<std::size_t>& counts) {
    std::vector<BundleTensors<typename Format::Element>> inputs(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
            inputs[rank].push_back(numbers<Format>(counts[tensor], 1000 * rank + counts[tensor]));
        }
    }
    return inputs;
}

/// The serial reference of order class tree, one element after another.
template <class Format>
BundleTensors<typename Format::Element> tree_sum(
    const std::vector<BundleTensors<typename Format::Element>>& inputs,
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
BundleTensors<typename Format::Element> ring_sum(
    const std::vector<BundleTensors<typename Format::Element>>& inputs,
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

/// What an allreduce left behind: every rank's tensors, and what every rank sent.
template <class Element>
struct Outcome {
    std::vector<BundleTensors<Element>> results;
    std::vector<ThreadWire> wires;

    bool all_equal(const BundleTensors<Element>& expected) const {
        for (const auto& result : results) {
            for (std::size_t tensor = 0; tensor < expected.size(); ++tensor) {
                const auto bytes = expected[tensor].size() * sizeof(Element);
                if (bytes != 0 &&
                    std::memcmp(result[tensor].data(), expected[tensor].data(), bytes) != 0)
                    return false;
            }
        }
        return true;
    }
};

/// An allreduce under test: runs on one rank, over its tensors.
using AllreduceUnderTest =
    std::function<void(ThreadWire&, std::span<const std::span<std::byte>> tensors, const Reduce&,
                       std::size_t segment_bytes)>;

template <class Format>
Outcome<typename Format::Element> run_allreduce(
    const AllreduceUnderTest& allreduce,
    std::vector<BundleTensors<typename Format::Element>> inputs, typename Format::Partial divisor,
    std::size_t segment_bytes) {
    const ScalarReduce<Format> reduce(divisor);
    auto wires = run_ranks(static_cast<int>(inputs.size()), [&](ThreadWire& wire) {
        const auto tensors = spans_of(inputs[static_cast<std::size_t>(wire.rank())]);
        allreduce(wire, tensors, reduce, segment_bytes);
    });
    return {std::move(inputs), std::move(wires)};
}

/// The bundles that every allreduce must get right on p ranks.
inline std::vector<std::vector<std::size_t>> bundles_for(int ranks) {
    const auto p = static_cast<std::size_t>(ranks);
    return {{},        {0},
            {1},       {p - 1},
            {p},       {p + 1},
            {4099},    {5, 0, 1000, 3, 1},
            {1, 1, 1}, {0, 700, 0, 900}};
}

/// Runs an allreduce over all group sizes, bundles and segment sizes; returns a line for each run
/// whose result is not `reference` bit for bit on every rank. 64 bytes a segment put many chunks in
/// flight.
template <class Format, class Reference>
std::vector<std::string> failures_of(const AllreduceUnderTest& allreduce,
                                     const Reference& reference) {
    std::vector<std::string> failures;
    for (const int ranks : group_sizes) {
        const auto divisor = static_cast<typename Format::Partial>(ranks);
        for (const auto& counts : bundles_for(ranks)) {
            const auto inputs = inputs_of<Format>(ranks, counts);
            const auto expected = reference(inputs, divisor);
            for (const std::size_t segment_bytes :
                 {std::size_t{64}, std::size_t{1000}, std::size_t{1} << 20}) {
                const auto outcome =
                    run_allreduce<Format>(allreduce, inputs, divisor, segment_bytes);
                if (outcome.all_equal(expected)) continue;
                std::string line = std::to_string(ranks) + " ranks, segments of " +
                                   std::to_string(segment_bytes) + ", members:";
                for (const auto count : counts) line += " " + std::to_string(count);
                failures.push_back(line);
            }
        }
    }
    return failures;
}

}  // namespace guozhuang::test
