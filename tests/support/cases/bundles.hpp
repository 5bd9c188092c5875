#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/layout/allreduce_args.hpp"
#include "collectives/layout/scratch.hpp"
#include "support/fakes/thread_wire.hpp"
#include "support/runner/sanitizer.hpp"
#include "support/tensors/bundle_tensors.hpp"

/// Bundles of tensors on ranks that are threads, to try algorithms with.
namespace guozhuang::test {

/// The numbers of ranks to try: powers of two, their neighbours and odd ones. A sanitizer is slow:
/// there a rank alone, the least odd number and the least power of two with an inner step do.
inline const std::vector<int> group_sizes =
    under_sanitizer ? std::vector{1, 3, 4} : std::vector{1, 2, 3, 4, 5, 7, 8, 16, 17};

/// The memory of one rank's tensors.
using TensorSpans = std::span<const std::span<std::byte>>;

/// Scratch of exactly the requested size, aligned, filled with garbage.
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

/// The memory of that rank's tensors.
template <class Element>
std::vector<std::span<std::byte>> spans_of(ByRank<Element>& tensors, int rank) {
    return spans_of(tensors[static_cast<std::size_t>(rank)]);
}

/// Runs body(wire, own) on a thread per rank: `own` is the memory of that rank's tensors, in which
/// it leaves its results. Returns the wires, which have counted what each rank sent.
template <class Element, class Body>
std::vector<ThreadWire> on_each_rank(ByRank<Element>& tensors, const Body& body) {
    return run_ranks(static_cast<int>(tensors.size()), [&](ThreadWire& wire) {
        const auto own = spans_of(tensors, wire.rank());
        body(wire, TensorSpans(own));
    });
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

/// Every rank's tensors, with these numbers of elements. A tensor's numbers do not depend on the
/// other tensors.
template <class Format>
ByRank<typename Format::Element> inputs_of(int ranks, const std::vector<std::size_t>& counts) {
    ByRank<typename Format::Element> inputs(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
            inputs[rank].push_back(numbers<Format>(counts[tensor], 1000 * rank + counts[tensor]));
        }
    }
    return inputs;
}

/// The bundles that every allreduce must get right on p ranks.
inline std::vector<std::vector<std::size_t>> bundles_for(int ranks) {
    const auto p = static_cast<std::size_t>(ranks);
    return {{},
            {0},
            {1},
            {p - 1},
            {p},
            {p + 1},
            {4099},
            {5, 0, 1000, 3, 1},
            {1, 1, 1},
            {0, 700, 0, 900},
            // Every segment lies in several tensors.
            std::vector<std::size_t>(40, 37)};
}

/// The segment sizes of the sweeps: 64 bytes put many chunks in flight, the last is the whole.
inline constexpr std::size_t segment_sizes[] = {64, 1000, std::size_t{1} << 20};

/// Whether every rank holds these tensors, bit for bit.
template <class Element>
bool all_ranks_hold(const ByRank<Element>& results, const BundleTensors<Element>& expected) {
    return std::ranges::all_of(results, [&](const auto& result) {
        return std::ranges::equal(result, expected, [](const auto& got, const auto& wanted) {
            return got.size() == wanted.size() &&
                   (got.empty() ||
                    std::memcmp(got.data(), wanted.data(), got.size() * sizeof(Element)) == 0);
        });
    });
}

/// One run of a sweep: an allreduce of random tensors, and what it must leave on every rank.
template <class Format>
struct SweepRun {
    std::string name;  ///< what the sweep says of it if it goes wrong
    ByRank<typename Format::Element> tensors;
    BundleTensors<typename Format::Element> expected;
    std::size_t segment_bytes = 0;
};

inline std::string name_of_run(const std::string& ranks, const std::vector<std::size_t>& counts,
                               std::size_t segment_bytes) {
    auto name = ranks + ", segments of " + std::to_string(segment_bytes) + " bytes, tensors of";
    for (const auto count : counts) name += " " + std::to_string(count);
    return name;
}

/// The runs of all bundles and segment sizes on this many ranks, which the names of the runs call
/// `name_of_ranks`. `reference(inputs)`: what a run must leave on every rank.
template <class Format, class Reference>
std::vector<SweepRun<Format>> sweep_runs(int ranks, const std::string& name_of_ranks,
                                         const Reference& reference) {
    std::vector<SweepRun<Format>> runs;
    for (const auto& counts : bundles_for(ranks)) {
        const auto inputs = inputs_of<Format>(ranks, counts);
        const auto expected = reference(inputs);
        for (const auto segment_bytes : segment_sizes)
            runs.push_back({name_of_run(name_of_ranks, counts, segment_bytes), inputs, expected,
                            segment_bytes});
    }
    return runs;
}

/// Adds the names of those runs to `mismatches` in which a rank holds anything but `expected`.
template <class Format>
void add_mismatches(std::vector<std::string>& mismatches,
                    const std::vector<SweepRun<Format>>& runs) {
    for (const auto& run : runs)
        if (!all_ranks_hold(run.tensors, run.expected)) mismatches.push_back(run.name);
}

/// The result of a sweep that finds nothing wrong.
inline const std::vector<std::string> none;

}  // namespace guozhuang::test
