// Operations by levels but the allreduce (hierarchical_test.cpp).
#include <mutex>
#include <numeric>
#include <utility>

#include "collectives/hierarchical/hierarchical_all_gather.hpp"
#include "collectives/hierarchical/hierarchical_reduce_scatter.hpp"
#include "collectives/operations/broadcast.hpp"
#include "support/cases/bundles.hpp"
#include "support/fakes/host_job.hpp"
#include "support/oracles/serial_sums.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

constexpr std::size_t whole = std::size_t{1} << 20;

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
        hierarchical::ReduceScatter work(group.local, group.all, ranks, blocks, segment_bytes);
        TestScratch scratch(work.scratch_bytes());
        const ScalarReduce<Format> half_of_sum(2), within(1);
        work.run({.input = blocks,
                  .output = std::as_writable_bytes(std::span(outputs[self])),
                  .scratch = scratch.span(),
                  .reduce = half_of_sum,
                  .segment_bytes = segment_bytes},
                 within);
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
          "[levels]") {
    check_reduce_scatter<I64>();
    check_reduce_scatter<F32>();
    check_reduce_scatter<HalfLike>();
}

TEST_CASE("hierarchical reduce-scatter sends each sum of a host once", "[levels]") {
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
    const hierarchical::RanksByHost ranks(job.locals, rank);
    const tree::BroadcastArgs args{
        .blocks = blocks, .scratch = {}, .segment_bytes = segment_bytes, .root = root};
    hierarchical::AllGather work(group.local, group.all, ranks, args);
    TestScratch scratch(work.scratch_bytes());
    work.run(Scratch(scratch.span()));
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

TEST_CASE("hierarchical all-gather gives all ranks every block, and each host once", "[levels]") {
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
          "[levels]") {
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

TEST_CASE("operations by levels take the scratch of few windows beside a lone rank", "[levels]") {
    constexpr std::size_t window_bytes = std::size_t{16} << 20, block_bytes = window_bytes;
    const Memory memory(2 * block_bytes);
    Memory output(2 * block_bytes);
    const std::vector<std::span<const std::byte>> inputs(64, std::span(memory).first(block_bytes));
    const std::vector<std::span<std::byte>> outputs(64, std::span(output).first(block_bytes));
    // No block lies in one run.
    std::vector<std::span<std::byte>> tensors;
    for (std::size_t at = 0; at < output.size(); at += 8192)
        tensors.push_back(std::span(output).subspan(at, 8191));
    Blocks gathered;
    gathered.assign_blocks(outputs);
    const Job job{{63, 1}};
    run_job(job, [&](int rank, Group& group) {
        group.all.set_window_bytes(window_bytes);
        const hierarchical::RanksByHost ranks(job.locals, rank);
        const auto need = [&](const Blocks& blocks, int root) {
            return hierarchical::AllGather(
                       group.local, group.all, ranks,
                       {.blocks = blocks, .scratch = {}, .segment_bytes = 16384, .root = root})
                .scratch_bytes();
        };
        const hierarchical::ReduceScatter sum(group.local, group.all, ranks, inputs, 16384);
        const auto most = 5 * window_bytes / 2;
        if (need(gathered, -1) > window_bytes / 2 ||
            need(Blocks(tensors, 1, 63, Cut::bundle), 0) > most || sum.scratch_bytes() > most)
            throw std::runtime_error("too much scratch");
    });
}

TEST_CASE("a broadcast goes from host to host unless the further hops take longer than copies",
          "[levels]") {
    constexpr std::size_t mib = std::size_t{1} << 20, window_bytes = 16 * mib;
    for (const int hosts : {2, 3}) CHECK(are_hosts_chained(1, hosts, hosts, window_bytes));
    CHECK_FALSE(are_hosts_chained(2 * mib - 1, 4, 4, window_bytes));
    CHECK(are_hosts_chained(2 * mib, 4, 4, window_bytes));
    CHECK(are_hosts_chained(1 * mib, 4, 4, window_bytes / 2));
    CHECK_FALSE(are_hosts_chained(2 * mib, 8, 8, window_bytes));
    CHECK(are_hosts_chained(4 * mib, 8, 8, window_bytes));
    // Eight ranks on each host: the tree may send five copies.
    CHECK_FALSE(are_hosts_chained(mib / 2 - 1, 4, 32, window_bytes));
    CHECK(are_hosts_chained(mib / 2, 4, 32, window_bytes));
}

}  // namespace
