#include "collectives/hierarchical/hierarchical_all_gather.hpp"
#include "collectives/hierarchical/hierarchical_allreduce.hpp"
#include "collectives/hierarchical/hierarchical_reduce_scatter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>
#include <numeric>
#include <utility>

#include "collectives/recursive/doubling_allreduce.hpp"
#include "support/cases/bundles.hpp"
#include "support/fakes/thread_group.hpp"
#include "support/oracles/serial_sums.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/sanitizer.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

constexpr std::size_t room_bytes = std::size_t{32} << 10;
constexpr std::size_t whole = std::size_t{1} << 20;

/// How many ranks are on each host; they have consecutive numbers.
struct Job {
    std::vector<int> locals;
    int hosts() const { return static_cast<int>(locals.size()); }
    int ranks() const { return std::accumulate(locals.begin(), locals.end(), 0); }
    int columns() const {
        const int least = std::ranges::min(locals);
        return std::ranges::max(locals) / least * least;
    }
    bool is_even() const { return std::ranges::min(locals) * hosts() == ranks(); }
    std::string name() const { return fmt::format("{} ranks", fmt::join(locals, "+")); }
};
const std::vector<Job> some_jobs = {{{1, 1}}, {{2, 2, 2}}, {{5, 3}}, {{1, 2, 2, 1}}};
const std::vector<Job> all_jobs = {
    {{1, 1}},    {{2, 2}},       {{3, 3}},          {{4, 4}},       {{1, 1, 1}}, {{2, 2, 2}},
    {{3, 3, 3}}, {{2, 2, 2, 2}}, {{2, 2, 2, 2, 2}}, {{2, 1}},       {{1, 3}},    {{5, 3}},
    {{3, 2, 2}}, {{3, 1, 2}},    {{1, 1, 4}},       {{1, 2, 2, 1}}, {{2, 5, 3}}};
const auto& jobs = under_sanitizer ? some_jobs : all_jobs;

/// The channels of a rank: within its host, across hosts for each of its columns, and to all ranks.
struct Group {
    ThreadGroup local;
    std::vector<ThreadWire> across;
    ThreadWire all;
    int locals;  ///< ranks of its host

    std::size_t messages_across() const {
        std::size_t messages = 0;
        for (const auto& wire : across) messages += wire.messages();
        return messages;
    }
    std::size_t bytes_across() const {
        std::size_t bytes = 0;
        for (const auto& wire : across) bytes += wire.bytes();
        return bytes;
    }
};

/// Runs body(rank, group) on a thread per rank; returns the groups, for their counts.
template <class Body>
std::vector<Group> run_job(const Job& job, const Body& body) {
    std::deque<Stages> hosts;
    std::deque<Switchboard> columns;
    for (int column = 0; column < job.columns(); ++column) columns.emplace_back(job.hosts());
    Switchboard board(job.ranks());
    std::vector<Group> all_groups;
    for (int host = 0; host < job.hosts(); ++host) {
        const int locals = job.locals[static_cast<std::size_t>(host)];
        hosts.emplace_back(locals, room_bytes);
        for (int local = 0; local < locals; ++local) {
            auto& group = all_groups.emplace_back(Group{
                {hosts.back(), local}, {}, {board, static_cast<int>(all_groups.size())}, locals});
            for (int column = local; column < job.columns(); column += locals)
                group.across.emplace_back(columns[static_cast<std::size_t>(column)], host);
            if (group.across.empty()) group.across.emplace_back(columns.front(), host);
        }
    }
    run_ranks(board, [&](int rank) {
        try {
            body(rank, all_groups[static_cast<std::size_t>(rank)]);
        } catch (...) {
            for (auto& column : columns) column.fail();
            throw;
        }
    });
    for (auto& column : columns)
        if (column.unmatched() != 0) throw std::runtime_error("messages left over");
    return all_groups;
}

void hierarchical_allreduce(Group& group, int columns, TensorSpans tensors, const Reduce& reduce,
                            const Reduce& within, std::size_t segment_bytes) {
    const std::span across(group.across);
    const Blocks blocks(tensors, reduce.element_bytes(), columns * across.front().size());
    TestScratch scratch(
        hierarchical::allreduce_scratch_bytes(group.local, across, blocks, segment_bytes));
    hierarchical::allreduce(group.local, across, {blocks, scratch.span(), reduce, segment_bytes},
                            within);
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

/// Halves the sums of one tensor of these inputs and gives each rank as many elements as `counts`
/// says; returns the ranks' outputs.
template <class Format>
using Outputs = std::vector<std::vector<typename Format::Element>>;
template <class Format>
Outputs<Format> scatter(const Job& job, const ByRank<typename Format::Element>& inputs,
                        const std::vector<std::size_t>& counts, std::size_t segment_bytes,
                        std::size_t window_bytes, std::vector<Group>* groups = nullptr) {
    Outputs<Format> outputs;
    for (const auto count : counts) outputs.emplace_back(count);
    auto done = run_job(job, [&](int rank, Group& group) {
        const auto self = static_cast<std::size_t>(rank);
        group.all.set_window_bytes(window_bytes);
        std::vector<std::span<const std::byte>> blocks;
        for (std::size_t begin = 0; const auto count : counts) {
            blocks.push_back(std::as_bytes(std::span(inputs[self][0]).subspan(begin, count)));
            begin += count;
        }
        const hierarchical::RanksByHost ranks(job.locals, rank);
        using Work = hierarchical::ReduceScatter<ThreadGroup, ThreadWire>;
        TestScratch scratch(
            Work::scratch_bytes(group.local, group.all, ranks, blocks, segment_bytes));
        const ScalarReduce<Format> half_of_sum(2), within(1);
        const direct::ReduceScatterArgs args{
            .input = blocks,
            .output = std::as_writable_bytes(std::span(outputs[self])),
            .scratch = scratch.span(),
            .reduce = half_of_sum,
            .segment_bytes = segment_bytes};
        Work(group.local, group.all, ranks, args, within).run();
    });
    if (groups) *groups = std::move(done);
    return outputs;
}

/// Even counts that add up to `count`; or uneven ones, with ranks that get nothing.
std::vector<std::size_t> counts_of(std::size_t count, std::size_t ranks, bool uneven) {
    std::vector<std::size_t> counts(ranks, count / ranks);
    for (std::size_t rank = 0; rank < count % ranks; ++rank) ++counts[rank];
    for (std::size_t rank = 1; uneven && rank < ranks; rank += 2)
        counts[rank - 1] += std::exchange(counts[rank], 0);
    return counts;
}

/// The ranks' outputs, one after the other, are compared with a tree over the ranks of each host,
/// rounded, and a tree over those sums.
template <class Format>
void check_reduce_scatter() {
    for (const auto& job : jobs)
        for (const std::size_t count : {0, 1, 17, 4099}) {
            const auto inputs = inputs_of<Format>(job.ranks(), {count});
            ByRank<typename Format::Element> sums;  // by host
            for (auto first = inputs.begin(); const int locals : job.locals) {
                sums.push_back(tree_sum<Format>({first, first + locals}, 1));
                first += locals;
            }
            const auto expected = tree_sum<Format>(sums, 2)[0];
            for (const bool uneven : {false, true})
                for (const auto& [segment_bytes, window_bytes] :
                     {std::pair<std::size_t, std::size_t>{64, 0}, {256, 8000}, {whole, 0}}) {
                    INFO(job.name() << ", " << count << " elements");
                    typename Outputs<Format>::value_type joined;
                    const auto counts =
                        counts_of(count, static_cast<std::size_t>(job.ranks()), uneven);
                    for (const auto& output :
                         scatter<Format>(job, inputs, counts, segment_bytes, window_bytes))
                        joined.insert(joined.end(), output.begin(), output.end());
                    CHECK((joined == expected));
                }
        }
}

TEST_CASE("hierarchical reduce-scatter is a tree within each host and one over the hosts",
          "[hierarchical]") {
    check_reduce_scatter<I64>();
    check_reduce_scatter<F32>();
    check_reduce_scatter<HalfLike>();
}

TEST_CASE("hierarchical reduce-scatter sends each sum of a host once", "[hierarchical]") {
    for (const auto& job : jobs) {
        const auto ranks = static_cast<std::size_t>(job.ranks());
        constexpr std::size_t each = 1000;
        std::vector<Group> groups;
        scatter<F32>(job, inputs_of<F32>(job.ranks(), {ranks * each}),
                     std::vector<std::size_t>(ranks, each), 256, 0, &groups);
        for (auto group = groups.begin(); const int locals : job.locals) {
            const auto others = ranks - static_cast<std::size_t>(locals);
            std::size_t most = 0, all = 0;
            for (int local = 0; local < locals; ++local, ++group) {
                most = std::max(most, group->all.bytes());
                all += group->all.bytes();
            }
            CHECK(all == others * each * sizeof(float));
            // Every rank of the host has its share.
            const auto turns =
                (others + static_cast<std::size_t>(locals) - 1) / static_cast<std::size_t>(locals);
            CHECK(most == turns * each * sizeof(float));
        }
    }
}

using Memory = std::vector<std::byte>;
/// Bytes that tell which rank they are from.
Memory bytes_of(int rank, std::size_t count) {
    Memory bytes(count);
    for (std::size_t i = 0; i < count; ++i)
        bytes[i] = static_cast<std::byte>(7 * static_cast<std::size_t>(rank + 1) + i % 251);
    return bytes;
}

/// An all-gather, or with a root a broadcast.
void all_gather(const Job& job, Group& group, int rank, const Blocks& blocks, int root,
                std::size_t segment_bytes) {
    using Work = hierarchical::AllGather<ThreadGroup, ThreadWire>;
    const hierarchical::RanksByHost ranks(job.locals, rank);
    tree::BroadcastArgs args{
        .blocks = blocks, .scratch = {}, .segment_bytes = segment_bytes, .root = root};
    TestScratch scratch(Work::scratch_bytes(group.local, group.all, ranks, args));
    args.scratch = scratch.span();
    Work(group.local, group.all, ranks, args).run();
}

/// The bytes that the ranks of each host have sent to others.
std::vector<std::size_t> bytes_by_host(const Job& job, const std::vector<Group>& groups) {
    std::vector<std::size_t> sent;
    for (auto group = groups.begin(); const int locals : job.locals) {
        sent.push_back(0);
        for (int local = 0; local < locals; ++local) sent.back() += (group++)->all.bytes();
    }
    return sent;
}

constexpr std::pair<std::size_t, std::size_t> segments_and_windows[] = {
    {64, 0}, {256, 8000}, {whole, 0}};

TEST_CASE("hierarchical all-gather gives all ranks every block, and each host once",
          "[hierarchical]") {
    for (const auto& job : jobs)
        for (const std::size_t count : {0, 1, 1000})
            for (const auto& [segment_bytes, window_bytes] : segments_and_windows) {
                INFO(job.name() << ", " << count << " bytes, segments of " << segment_bytes);
                const auto length_of = [&](int rank) {
                    return count * static_cast<std::size_t>(rank % 4);  // some have none
                };
                std::vector<std::vector<Memory>> all(static_cast<std::size_t>(job.ranks()));
                std::vector<Memory> expected;
                for (int rank = 0; rank < job.ranks(); ++rank)
                    expected.push_back(bytes_of(rank, length_of(rank)));
                const auto groups = run_job(job, [&](int rank, Group& group) {
                    group.all.set_window_bytes(window_bytes);
                    const auto self = static_cast<std::size_t>(rank);
                    for (const auto& block : expected) all[self].emplace_back(block.size());
                    all[self][self] = expected[self];
                    std::vector<std::span<std::byte>> spans(all[self].begin(), all[self].end());
                    Blocks blocks;
                    blocks.assign_blocks(spans);
                    all_gather(job, group, rank, blocks, -1, segment_bytes);
                });
                for (const auto& blocks : all) CHECK((blocks == expected));
                // A host sends on everything that the next one has not got itself.
                std::vector<std::size_t> lengths;
                for (int rank = 0; const int locals : job.locals) {
                    lengths.push_back(0);
                    for (int local = 0; local < locals; ++local)
                        lengths.back() += length_of(rank++);
                }
                const auto total = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
                std::ranges::rotate(lengths, lengths.begin() + 1);
                for (auto& length : lengths) length = total - length;
                CHECK(bytes_by_host(job, groups) == lengths);
            }
}

TEST_CASE("hierarchical broadcast gives all ranks the root's bytes, and each host once",
          "[hierarchical]") {
    for (const auto& job : jobs)
        for (const std::size_t count : {0, 1, 5003})
            for (const auto& [segment_bytes, window_bytes] : segments_and_windows)
                for (const int root : {0, job.ranks() / 2, job.ranks() - 1}) {
                    INFO(job.name() << ", root " << root << ", " << count << " bytes, segments of "
                                    << segment_bytes);
                    const auto expected = bytes_of(root, count), second = bytes_of(root + 1, 10);
                    int wrong = 0, shares = 0;
                    std::mutex mutex;
                    for (int first = 0; const int locals : job.locals) {
                        if (root >= first) shares = locals;
                        first += locals;
                    }
                    const auto groups = run_job(job, [&](int rank, Group& group) {
                        group.all.set_window_bytes(window_bytes);
                        std::vector<Memory> tensors{Memory(count), {}, Memory(second.size())};
                        if (rank == root) tensors = {expected, {}, second};
                        const std::vector<std::span<std::byte>> spans(tensors.begin(),
                                                                      tensors.end());
                        all_gather(job, group, rank, Blocks(spans, 1, shares, Cut::bundle), root,
                                   segment_bytes);
                        const std::lock_guard lock(mutex);
                        wrong += tensors[0] != expected || tensors[2] != second;
                    });
                    CHECK(wrong == 0);
                    std::size_t senders = 0;
                    for (const auto bytes : bytes_by_host(job, groups)) {
                        CHECK((bytes == 0 || bytes == count + second.size()));
                        senders += bytes > 0;
                    }
                    CHECK(senders == job.locals.size() - 1);  // the last host passes nothing on
                }
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
