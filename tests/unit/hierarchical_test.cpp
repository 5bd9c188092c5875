#include "collectives/hierarchical/hierarchical_allreduce.hpp"

#include <algorithm>
#include <bit>

#include "collectives/recursive/doubling_allreduce.hpp"
#include "support/cases/bundles.hpp"
#include "support/fakes/host_job.hpp"
#include "support/oracles/serial_sums.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

constexpr std::size_t whole = std::size_t{1} << 20;

void hierarchical_allreduce(Group& group, int columns, TensorSpans tensors, const Reduce& reduce,
                            const Reduce& within, std::size_t segment_bytes) {
    const std::span across(group.across);
    const Blocks blocks(tensors, reduce.element_bytes(), columns * across.front().size());
    TestScratch scratch(
        hierarchical::allreduce_scratch_bytes(group.local, across, blocks, segment_bytes));
    hierarchical::Allreduce(group.local, across, {blocks, scratch.span(), reduce, segment_bytes},
                            within)
        .run();
}

void host_doubling(Group& group, TensorSpans tensors, const Reduce& reduce) {
    auto& local = group.local;
    auto& across = group.across.front();
    const Blocks blocks(tensors, reduce.element_bytes(), 1);
    TestScratch scratch(recursive::host_doubling_scratch_bytes(local, across, blocks, reduce));
    recursive::host_doubling_allreduce(local, across, {blocks, scratch.span(), reduce});
}

TEST_CASE("two hosts of two ranks by hand: all end with the sums", "[hierarchical]") {
    ByRank<int> tensors = {{{1, 2, 3, 4}},               // rank 0, on the first host
                           {{10, 20, 30, 40}},           // rank 1, on the first host
                           {{100, 200, 300, 400}},       // rank 2, on the second host
                           {{1000, 2000, 3000, 4000}}};  // rank 3, on the second host
    const auto groups = run_job({{2, 2}}, [&](int rank, Group& group) {
        const auto own = spans_of(tensors, rank);
        hierarchical_allreduce(group, 2, own, Sum<int>(), /*within=*/Sum<int>(), whole);
    });
    const BundleTensors<int> sums = {{1111, 2222, 3333, 4444}};
    CHECK(tensors == ByRank<int>{sums, sums, sums, sums});
    // Rank 0 has blocks 0 and 1: it sends its host's sum of block 1, then the whole one of block 0.
    CHECK(groups[0].messages_across() == 2);
    CHECK(groups[0].bytes_across() == 2 * sizeof(int));
}

TEST_CASE("hosts of two ranks and one by hand: the lone rank is in both rings", "[hierarchical]") {
    ByRank<int> tensors = {{{1, 2, 3, 4}},           // rank 0, on the first host
                           {{10, 20, 30, 40}},       // rank 1, on the first host
                           {{100, 200, 300, 400}}};  // rank 2, alone on the second host
    const auto groups = run_job({{2, 1}}, [&](int rank, Group& group) {
        const auto own = spans_of(tensors, rank);
        hierarchical_allreduce(group, 2, own, Sum<int>(), /*within=*/Sum<int>(), whole);
    });
    const BundleTensors<int> sums = {{111, 222, 333, 444}};
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    // As many bytes as between two lone ranks, on both hosts; none staged for nobody.
    CHECK(groups[0].bytes_across() == 2 * sizeof(int));
    CHECK(groups[1].bytes_across() == 2 * sizeof(int));
    CHECK(groups[2].bytes_across() == 4 * sizeof(int));
    CHECK(groups[2].local.bytes() == 0);
}

/// The result that an allreduce must leave on every rank, added up in its order by one thread:
/// block b of a tensor is in column b / hosts, as block b % hosts of its ring.
template <class Format>
BundleTensors<typename Format::Element> level_sum(const ByRank<typename Format::Element>& inputs,
                                                  const Job& job,
                                                  typename Format::Partial divisor) {
    const ScalarReduce<Format> reduce(divisor), within(1);
    ByRank<typename Format::Element> sums;  // by host
    for (auto first = inputs.begin(); const int locals : job.locals) {
        sums.push_back(tree_sum<Format>({first, first + locals}, 1));
        first += locals;
    }
    auto result = inputs[0];
    const auto hosts = static_cast<std::size_t>(job.hosts()),
               blocks = hosts * static_cast<std::size_t>(job.columns());
    for (std::size_t tensor = 0; tensor < result.size(); ++tensor) {
        const auto count = result[tensor].size();
        for (std::size_t block = 0, begin = 0; block < blocks; ++block) {
            const auto length = count / blocks + (block < count % blocks ? 1 : 0);
            const auto part = [&](std::size_t host) {
                return std::as_bytes(std::span(sums[host % hosts][tensor]).subspan(begin, length));
            };
            const auto into =
                std::as_writable_bytes(std::span(result[tensor]).subspan(begin, length));
            if (length != 0) std::memcpy(into.data(), part(block % hosts + 1).data(), into.size());
            for (std::size_t step = 2; step <= hosts; ++step)
                reduce.combine(into, into, part(block % hosts + step));
            reduce.finish(into);
            begin += length;
        }
    }
    return result;
}

TEST_CASE("hierarchical order: each host's sum first, then those in ring order", "[hierarchical]") {
    constexpr float big = 1e8f;  // so big that big + 1 is big
    const BundleTensors<float> all_big = {{big, big, big, big, big, big}},
                               ones = {{1, 1, 1, 1, 1, 1}}, zeros = {{0, 0, 0, 0, 0, 0}},
                               all_minus = {{-big, -big, -big, -big, -big, -big}};
    // Host 0 has big in all, host 1 has 1, host 2 has -big.
    const ByRank<float> inputs = {all_big, zeros, ones, zeros, all_minus, zeros};
    const Job job{{2, 2, 2}};
    auto tensors = inputs;
    run_job(job, [&](int rank, Group& group) {
        hierarchical_allreduce(group, 2, spans_of(tensors, rank), Sum<float>(),
                               /*within=*/Sum<float>(), whole);
    });
    // Each local rank has three of the six blocks, which are added up as (1 - big) + big,
    // (-big + big) + 1 and (big + 1) - big.
    const BundleTensors<float> sums = {{0, 1, 0, 0, 1, 0}};
    CHECK(tensors == ByRank<float>{sums, sums, sums, sums, sums, sums});
    CHECK(level_sum<F32>(inputs, job, 1) == sums);  // what the sweeps compare with
    CHECK(ring_sum<F32>(inputs, 1) == BundleTensors<float>{{0, 0, 1, 1, 0, 0}});
    CHECK(tree_sum<F32>(inputs, 1) == zeros);
}

/// Averages random tensors over all jobs, bundles and segment sizes; returns a line for each run
/// that does not leave level_sum() bit for bit on every rank. The runs of a job follow each other
/// through the same stages and wires.
template <class Format>
std::vector<std::string> mismatches_over_sizes() {
    std::vector<std::string> mismatches;
    for (const auto& job : jobs) {
        const auto divisor = static_cast<typename Format::Partial>(job.ranks());
        const ScalarReduce<Format> average(divisor), within(1);
        auto runs = sweep_runs<Format>(job.ranks(), job.name(), [&](const auto& inputs) {
            return level_sum<Format>(inputs, job, divisor);
        });
        run_job(job, [&](int rank, Group& group) {
            for (std::size_t i = 0; i < runs.size(); ++i) {
                auto& run = runs[i];
                // Every other run with more chunks in flight than usual.
                for (auto& wire : group.across)
                    wire.set_window_bytes(i % 2 * 5 * run.segment_bytes);
                hierarchical_allreduce(group, job.columns(), spans_of(run.tensors, rank), average,
                                       within, run.segment_bytes);
            }
        });
        add_mismatches(mismatches, runs);
    }
    return mismatches;
}

TEST_CASE("the reference of the hierarchical sum is a sum, and not that of the tree or the ring",
          "[hierarchical]") {
    const Job job{{3, 2, 1}};
    const auto integers = inputs_of<I64>(job.ranks(), {501});
    CHECK(level_sum<I64>(integers, job, 1) == tree_sum<I64>(integers, 1));
    const auto floats = inputs_of<F32>(job.ranks(), {501});
    CHECK(level_sum<F32>(floats, job, 1) != tree_sum<F32>(floats, 1));
    CHECK(level_sum<F32>(floats, job, 1) != ring_sum<F32>(floats, 1));
}

TEST_CASE(
    "hierarchical allreduce is a tree within each host and a ring across, bit for bit, fused or "
    "not",
    "[hierarchical]") {
    CHECK(mismatches_over_sizes<I64>() == none);
    CHECK(mismatches_over_sizes<F32>() == none);
    CHECK(mismatches_over_sizes<HalfLike>() == none);
}

/// The same for recursive doubling whose first steps are within a host, and the tree over all
/// ranks.
template <class Format>
std::vector<std::string> mismatches_of_doubling() {
    std::vector<std::string> mismatches;
    for (const auto& job : jobs) {
        const int locals = job.columns();
        if (!job.is_even() || !std::has_single_bit(static_cast<unsigned>(locals))) continue;
        const auto divisor = static_cast<typename Format::Partial>(job.ranks());
        const ScalarReduce<Format> average(divisor);
        auto runs = sweep_runs<Format>(job.ranks(), job.name(), [&](const auto& inputs) {
            return tree_sum<Format>(inputs, divisor);
        });
        const auto is_long = [](const auto& run) {
            std::size_t count = 0;
            for (const auto& tensor : run.tensors[0]) count += tensor.size();
            return count * sizeof(typename Format::Element) > room_bytes;
        };
        std::erase_if(runs, is_long);
        REQUIRE(runs.size() > 5);
        const auto groups = run_job(job, [&](int rank, Group& group) {
            for (auto& run : runs) host_doubling(group, spans_of(run.tensors, rank), average);
        });
        for (int rank = 0; rank < job.ranks(); ++rank)  // one voice for each host
            CHECK((groups[static_cast<std::size_t>(rank)].messages_across() == 0) ==
                  (rank % locals != 0));
        add_mismatches(mismatches, runs);
    }
    return mismatches;
}

TEST_CASE("recursive doubling by hosts has the bits of the tree over all ranks", "[hierarchical]") {
    CHECK(mismatches_of_doubling<I64>() == none);
    CHECK(mismatches_of_doubling<F32>() == none);
    CHECK(mismatches_of_doubling<HalfLike>() == none);
}

TEST_CASE("hierarchical allreduce moves what its cost says", "[hierarchical]") {
    for (const auto& job : jobs) {
        auto inputs = inputs_of<F32>(job.ranks(), {40'099});
        const Blocks blocks(spans_of(inputs[0]), sizeof(float), job.columns() * job.hosts());
        const Sum<float> reduce(1);
        const std::size_t segment_bytes = 256;
        const Chunks chunks(blocks.largest_bytes(), segment_bytes);
        const auto hops = 2 * static_cast<std::size_t>(job.hosts() - 1);
        std::size_t across = 0;
        for (const auto& group : run_job(job, [&](int rank, Group& here) {
                 hierarchical_allreduce(here, job.columns(), spans_of(inputs, rank), reduce, reduce,
                                        segment_bytes);
             })) {
            // A rank writes the others' shares as they are, and its own ones complete.
            CHECK(group.local.bytes() == (group.locals > 1 ? blocks.total_bytes() : 0));
            CHECK(group.local.rounds() == chunks.count() + 3);
            const auto rings = group.local.rank() < job.columns() ? group.across.size() : 0;
            CHECK(group.messages_across() <= rings * hops * chunks.count());
            CHECK(group.messages_across() >= rings * hops * (chunks.count() - 1));
            across += group.bytes_across();
        }
        CHECK(across == hops * blocks.total_bytes());  // what one ring of the hosts would move
    }
}

TEST_CASE("few segments take few rounds", "[hierarchical]") {
    const Job job{{2, 2}};
    auto inputs = inputs_of<F32>(job.ranks(), {1024});
    const Sum<float> reduce(1);
    for (const auto& [segment_bytes, rounds] :
         {std::pair<std::size_t, std::size_t>{1024, 2}, {512, 4}, {256, 7}})
        for (const auto& group : run_job(job, [&](int rank, Group& here) {
                 hierarchical_allreduce(here, 2, spans_of(inputs, rank), reduce, reduce,
                                        segment_bytes);
             }))
            CHECK(group.local.rounds() == rounds);
}

TEST_CASE("a room holds the segments of so many hosts, or says that it cannot", "[hierarchical]") {
    CHECK(hierarchical::segment_limit_bytes(std::size_t{1} << 20, 2, 2) == std::size_t{256} << 10);
    CHECK(hierarchical::segment_limit_bytes(room_bytes, 4, 256) == 0);
    for (const auto& job : jobs)
        CHECK(hierarchical::segment_limit_bytes(room_bytes, job.columns(), job.hosts()) *
                  static_cast<std::size_t>(job.columns() * job.hosts()) <=
              room_bytes);
}

}  // namespace
