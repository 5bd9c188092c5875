#include <array>
#include <atomic>
#include <numeric>
#include <stdexcept>

#include "backends/host/host_backend.hpp"
#include "collectives/hierarchical/hierarchical_all_gather.hpp"
#include "collectives/hierarchical/hierarchical_reduce_scatter.hpp"
#include "collectives/staged/staged_all_to_all.hpp"
#include "collectives/staged/staged_allreduce.hpp"
#include "collectives/staged/symmetric_allreduce.hpp"
#include "support/cases/bundles.hpp"
#include "support/fakes/thread_group.hpp"
#include "support/oracles/serial_sums.hpp"
#include "support/runner/catch.hpp"
#include "wire/inproc/inproc_transport.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

constexpr std::size_t room_bytes = std::size_t{96} << 10;
constexpr std::size_t whole = std::size_t{1} << 20;

/// Runs body(group) on a thread per rank; returns the groups, for their counts.
template <class Body>
std::vector<ThreadGroup> run_staged(int ranks, const Body& body, bool ranks_share_cores = false) {
    Stages stages(ranks, room_bytes, ranks_share_cores);
    std::vector<ThreadGroup> groups;
    for (int rank = 0; rank < ranks; ++rank) groups.emplace_back(stages, rank);
    Switchboard board(ranks);  // for the threads and their exceptions: no message goes through it
    run_ranks(board, [&](int rank) { body(groups[static_cast<std::size_t>(rank)]); });
    return groups;
}

/// The same, with the memory of that rank's tensors, in which it leaves its results.
template <class Element, class Body>
std::vector<ThreadGroup> run_staged(ByRank<Element>& tensors, const Body& body) {
    return run_staged(static_cast<int>(tensors.size()), [&](ThreadGroup& group) {
        const auto own = spans_of(tensors, group.rank());
        body(group, TensorSpans(own));
    });
}

// By hand, on three ranks. Each has a stage that the others read; no message is sent.

TEST_CASE("three ranks staged allreduce: all end with the sums", "[staged]") {
    const ByRank<int> inputs = {{{1, 2, 3, 4}, {5}},             // rank 0
                                {{10, 20, 30, 40}, {50}},        // rank 1
                                {{100, 200, 300, 400}, {500}}};  // rank 2
    const BundleTensors<int> sums = {{111, 222, 333, 444}, {555}};
    const auto allreduce = [](ThreadGroup& group, TensorSpans own) {
        const Blocks blocks(own, sizeof(int), 3, Cut::bundle);  // on rank 0 {1, 2}, {3, 4} and {5}
        TestScratch scratch(staged::staged_scratch_bytes<ThreadGroup>(3, own.size()));
        Blocks rest;
        const Sum<int> reduce;
        staged::StagedAllreduce<ThreadGroup>(group, {.blocks = blocks,
                                                     .scratch = scratch.span(),
                                                     .reduce = reduce,
                                                     .segment_bytes = whole,
                                                     .tensors = own,
                                                     .rest = &rest})
            .run();
    };

    auto tensors = inputs;
    auto groups = run_staged(tensors, allreduce);
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    // Blocks 1 and 2, then the sums of block 0, to two ranks.
    CHECK(groups[0].bytes() == (3 + 2 * 2) * sizeof(int));
    CHECK(groups[0].rounds() == 1);
    CHECK(groups[0].answers() == 1);

    // The same where all ranks have mapped the tensors themselves.
    tensors = inputs;
    groups = run_staged(tensors, [&](ThreadGroup& group, TensorSpans own) {
        group.open(1);
        allreduce(group, own);
    });
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    // So small a bundle is not shared out: the last rank writes the sums to both others.
    CHECK(groups[0].bytes() == 0);
    CHECK(groups[2].bytes() == 2 * 5 * sizeof(int));
    CHECK(groups[0].rounds() == 1);
    CHECK(groups[0].answers() == 1);
}

TEST_CASE("three ranks symmetric allreduce: each adds up everything, in one round", "[staged]") {
    ByRank<int> tensors = {{{1, 2}, {3}}, {{10, 20}, {30}}, {{100, 200}, {300}}};
    const auto groups = run_staged(tensors, [](ThreadGroup& group, TensorSpans own) {
        std::vector<std::span<const std::byte>> terms(3);
        staged::symmetric_allreduce(group, own, 3 * sizeof(int), Sum<int>(), terms);
    });
    const BundleTensors<int> sums = {{111, 222}, {333}};
    CHECK(tensors == ByRank<int>{sums, sums, sums});
    CHECK(groups[0].bytes() == 3 * sizeof(int));
    CHECK(groups[0].rounds() == 1);
    CHECK(groups[0].answers() == 0);
}

/// Calls move(wire, ranks): the group is all ranks of one host, which send no messages.
template <class Move>
void on_one_host(ThreadGroup& group, const Move& move) {
    Switchboard board(group.size());
    ThreadWire wire(board, group.rank());
    move(wire, hierarchical::RanksByHost(std::array{group.size()}, group.rank()));
    if (wire.messages() != 0) throw std::runtime_error("messages on one host");
}

/// An all-gather, or with a root a broadcast.
void all_gather(ThreadGroup& group, const Blocks& blocks, int root, std::size_t segment_bytes) {
    on_one_host(group, [&](ThreadWire& wire, const hierarchical::RanksByHost& ranks) {
        const tree::BroadcastArgs args{
            .blocks = blocks, .scratch = {}, .segment_bytes = segment_bytes, .root = root};
        hierarchical::AllGather(group, wire, ranks, args).run(Scratch({}));
    });
}
void all_gather(ThreadGroup& group, TensorSpans own, std::size_t segment_bytes) {
    Blocks blocks;
    blocks.assign_blocks(own);
    all_gather(group, blocks, -1, segment_bytes);
}

TEST_CASE("three ranks staged broadcast and all-gather", "[staged]") {
    ByRank<int> tensors = {{{1, 2}}, {{10, 20}}, {{100, 200}}};
    run_staged(tensors, [](ThreadGroup& group, TensorSpans own) {
        all_gather(group, Blocks(own, sizeof(int), 1), /*root=*/1, whole);
    });
    CHECK(tensors == ByRank<int>{{{10, 20}}, {{10, 20}}, {{10, 20}}});

    ByRank<int> blocks = {{{1, 2}, {-1}, {}},     // rank 0 has block 0
                          {{-1, -1}, {3}, {}},    // rank 1 has block 1
                          {{-1, -1}, {-1}, {}}};  // rank 2 has block 2, which is empty
    run_staged(blocks, [](ThreadGroup& group, TensorSpans own) { all_gather(group, own, whole); });
    const BundleTensors<int> all = {{1, 2}, {3}, {}};
    CHECK(blocks == ByRank<int>{all, all, all});
}

// The allreduces of the sweeps.

void staged(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce,
            std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), group.size(), Cut::bundle);
    TestScratch scratch(staged::staged_scratch_bytes<ThreadGroup>(group.size(), tensors.size()));
    Blocks rest;
    staged::StagedAllreduce<ThreadGroup>(
        group, {blocks, scratch.span(), reduce, segment_bytes, tensors, &rest})
        .run();
}

void in_place(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce,
              std::size_t segment_bytes) {
    group.open(1);
    staged(group, tensors, reduce, segment_bytes);
}

/// All but the ends of each tensor, which are others on each rank.
void in_place_but_the_ends(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce,
                           std::size_t segment_bytes) {
    group.open(1, reduce.element_bytes() * static_cast<std::size_t>(group.rank() % 3));
    staged(group, tensors, reduce, segment_bytes);
}

/// Some ranks have opened their memory in vain.
void in_vain(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce,
             std::size_t segment_bytes) {
    group.open(static_cast<std::uint64_t>(group.rank() % 3));
    staged(group, tensors, reduce, segment_bytes);
}

/// Opens every second tensor except its ends, and none of the others.
void in_place_here_and_there(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce,
                             std::size_t segment_bytes) {
    std::vector<std::span<std::byte>> open;
    for (std::size_t tensor = 0; tensor < tensors.size(); tensor += 2)
        open.push_back(tensors[tensor]);
    group.open(1, reduce.element_bytes() * static_cast<std::size_t>(group.rank() % 3), open);
    staged(group, tensors, reduce, segment_bytes);
}

void symmetric(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce, std::size_t) {
    std::size_t bytes = 0;
    for (const auto tensor : tensors) bytes += tensor.size();
    if (bytes > room_bytes) throw std::runtime_error("too large for a room");
    std::vector<std::span<const std::byte>> terms(static_cast<std::size_t>(group.size()));
    staged::symmetric_allreduce(group, tensors, bytes, reduce, terms);
}

using Allreduce = void (*)(ThreadGroup&, TensorSpans, const Reduce&, std::size_t);

/// Averages random tensors over all group sizes, bundles and segment sizes; returns a line for each
/// run that does not leave tree_sum(), one loop that adds up in tree order, bit for bit on every
/// rank. The runs of one group size follow each other through the same stages: the rounds of one
/// must not disturb the next.
template <class Format>
std::vector<std::string> mismatches_over_sizes(Allreduce allreduce) {
    std::vector<std::string> mismatches;
    for (const int ranks : group_sizes) {
        const auto divisor = static_cast<typename Format::Partial>(ranks);
        const ScalarReduce<Format> average(divisor);
        auto runs = sweep_runs<Format>(
            ranks, std::to_string(ranks) + " ranks",
            [&](const auto& inputs) { return tree_sum<Format>(inputs, divisor); });
        run_staged(ranks, [&](ThreadGroup& group) {
            for (auto& run : runs)
                allreduce(group, spans_of(run.tensors, group.rank()), average, run.segment_bytes);
        });
        add_mismatches(mismatches, runs);
    }
    return mismatches;
}

TEMPLATE_TEST_CASE("allreduces over stages and in place sum in tree order", "[staged]", I64, F32,
                   HalfLike) {
    for (const auto& [name, allreduce] :
         {std::pair<const char*, Allreduce>{"staged", staged},
          {"in place", in_place},
          {"in place of tensors whose ends are private", in_place_but_the_ends},
          {"each tensor its own way", in_place_here_and_there},
          {"in place on some ranks, in vain", in_vain},
          {"symmetric", symmetric}}) {
        INFO(name);
        CHECK(mismatches_over_sizes<TestType>(allreduce) == none);
    }
}

TEST_CASE("what is beyond those tensors that a stage has room to show is staged", "[staged]") {
    const std::vector<std::size_t> counts(2 * room_bytes / sizeof(RegionRef), 1);
    const auto inputs = inputs_of<F32>(2, counts);
    auto sums = inputs;
    const Sum<float> reduce(1);
    const auto groups = run_staged(
        2, [&](ThreadGroup& rank) { in_place(rank, spans_of(sums, rank.rank()), reduce, whole); });
    CHECK(sums[1] == tree_sum<F32>(inputs, 1));
    CHECK(groups[0].rounds() == 2);  // one to show, and one for the rest
    CHECK(groups[0].answers() == 2);
    CHECK(groups[0].bytes() < counts.size() * sizeof(float));
}

void by_size(ThreadGroup& group, TensorSpans tensors, const Reduce& reduce,
             std::size_t segment_bytes) {
    const Blocks blocks(tensors, reduce.element_bytes(), group.size(), Cut::bundle);
    TestScratch scratch(staged::staged_scratch_bytes<ThreadGroup>(group.size(), tensors.size()));
    Blocks rest;
    staged::staged_allreduce(group,
                             {blocks, scratch.span(), reduce, segment_bytes, tensors, &rest});
}

TEST_CASE("where ranks share cores, larger bundles are added up by everybody", "[staged]") {
    const auto answers = [](std::size_t floats, bool ranks_share_cores, Allreduce add_up) {
        auto tensors = inputs_of<F32>(4, {floats});
        const auto sums = tree_sum<F32>(tensors, 1);
        const auto groups = run_staged(
            4,
            [&](ThreadGroup& group) {
                const auto own = spans_of(tensors, group.rank());
                add_up(group, own, Sum<float>(), whole);
            },
            ranks_share_cores);
        CHECK(all_ranks_hold(tensors, sums));
        return groups[0].answers();  // none if everybody has added up
    };
    CHECK(answers(512, false, by_size) == 0);
    CHECK(answers(513, false, by_size) == 1);
    CHECK(answers(1024, true, by_size) == 0);  // 16 KiB over all ranks
    CHECK(answers(1025, true, by_size) == 1);
}

/// The parcel of rank `from` for rank `to`: bytes that no other pair has at the same place.
std::vector<std::byte> parcel(int from, int to, std::size_t bytes) {
    std::vector<std::byte> content(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        content[i] =
            static_cast<std::byte>(i * 7 + i / 256 + static_cast<std::size_t>(from * 31 + to * 17));
    return content;
}

/// Bytes of each rank's parcel: uneven, some empty, some longer than a stage.
std::size_t parcel_bytes(int from, int to, std::size_t scale) {
    return static_cast<std::size_t>((from * 5 + to * 3) % 4) * scale;
}

std::vector<std::span<std::byte>> writable(std::vector<std::vector<std::byte>>& parcels) {
    return {parcels.begin(), parcels.end()};
}

/// Runs body(group, scale, segment_bytes) for many sizes, all in a row through the same stages.
template <class Body>
void for_many_sizes(const Body& body) {
    for (const int ranks : group_sizes)
        run_staged(ranks, [&](ThreadGroup& group) {
            for (const auto scale : {std::size_t{1}, std::size_t{1000}, std::size_t{100'001}})
                for (const std::size_t segment_bytes : {std::size_t{64}, std::size_t{4096}, whole})
                    if (scale / segment_bytes < 200) body(group, scale, segment_bytes);
        });
}

TEST_CASE("staged broadcast gives all ranks the root's bytes", "[staged]") {
    std::atomic<int> wrong{0};
    for_many_sizes([&](ThreadGroup& group, std::size_t scale, std::size_t segment_bytes) {
        for (const int root : {0, group.size() - 1}) {
            std::vector<std::vector<std::byte>> tensors{
                parcel(group.rank(), 0, 3 * scale), {}, parcel(group.rank(), 1, 1)};
            const auto spans = writable(tensors);
            all_gather(group, Blocks(spans, 1, 1), root, segment_bytes);
            if (tensors[0] != parcel(root, 0, 3 * scale) || tensors[2] != parcel(root, 1, 1))
                ++wrong;
        }
    });
    CHECK(wrong == 0);
}

TEST_CASE("staged all-gather gives all ranks everybody's block", "[staged]") {
    std::atomic<int> wrong{0};
    for_many_sizes([&](ThreadGroup& group, std::size_t scale, std::size_t segment_bytes) {
        std::vector<std::vector<std::byte>> blocks;
        for (int rank = 0; rank < group.size(); ++rank)
            blocks.emplace_back(parcel_bytes(rank, 1, scale));
        const auto self = static_cast<std::size_t>(group.rank());
        blocks[self] = parcel(group.rank(), 0, blocks[self].size());
        all_gather(group, writable(blocks), segment_bytes);
        for (int rank = 0; rank < group.size(); ++rank)
            if (blocks[static_cast<std::size_t>(rank)] !=
                parcel(rank, 0, parcel_bytes(rank, 1, scale)))
                ++wrong;
    });
    CHECK(wrong == 0);
}

TEST_CASE("staged all-to-all gives every rank its part of every other", "[staged]") {
    std::atomic<int> wrong{0};
    for_many_sizes([&](ThreadGroup& group, std::size_t scale, std::size_t segment_bytes) {
        std::vector<std::vector<std::byte>> out, in;
        for (int rank = 0; rank < group.size(); ++rank) {
            out.push_back(parcel(group.rank(), rank, parcel_bytes(group.rank(), rank, scale)));
            in.emplace_back(parcel_bytes(rank, group.rank(), scale));
        }
        const std::vector<std::span<const std::byte>> parts(out.begin(), out.end());
        staged::staged_all_to_all(group, parts, writable(in), 3 * scale, segment_bytes);
        for (int rank = 0; rank < group.size(); ++rank)
            if (in[static_cast<std::size_t>(rank)] !=
                parcel(rank, group.rank(), parcel_bytes(rank, group.rank(), scale)))
                ++wrong;
    });
    CHECK(wrong == 0);
}

TEST_CASE("staged reduce-scatter gives each rank its block of the sum, and leaves the input",
          "[staged]") {
    using Format = HalfLike;
    std::atomic<int> wrong{0};
    for (const int ranks : group_sizes) {
        const std::size_t count = 5000;  // of each block but the last, which is shorter
        std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), count);
        counts.back() = 13;
        const auto inputs = inputs_of<Format>(ranks, counts);
        const auto expected = tree_sum<Format>(inputs, 1);
        const ScalarReduce<Format> reduce(1);
        run_staged(ranks, [&](ThreadGroup& group) {
            const auto self = static_cast<std::size_t>(group.rank());
            for (const std::size_t segment_bytes : {std::size_t{64}, std::size_t{1000}, whole}) {
                auto input = inputs[self];
                std::vector<std::span<const std::byte>> blocks;
                for (auto& block : input) blocks.push_back(std::as_bytes(std::span(block)));
                std::vector<typename Format::Element> sum(input[self].size());
                on_one_host(group, [&](ThreadWire& wire, const auto& by_host) {
                    hierarchical::ReduceScatter work(group, wire, by_host, blocks, segment_bytes);
                    TestScratch scratch(work.scratch_bytes());
                    work.run({.input = blocks,
                              .output = std::as_writable_bytes(std::span(sum)),
                              .scratch = scratch.span(),
                              .reduce = reduce,
                              .segment_bytes = segment_bytes},
                             reduce);
                });
                if (sum != expected[self] || input != inputs[self]) ++wrong;
                staged::staged_barrier(group);
            }
        });
    }
    CHECK(wrong == 0);
}

TEST_CASE("operations of both kinds follow each other on the same stages", "[staged]") {
    for (const int ranks : {2, 3, 5}) {
        const auto inputs = inputs_of<F32>(ranks, {1000, 7});
        const auto expected = tree_sum<F32>(inputs, 1);
        std::vector<int> wrong(static_cast<std::size_t>(ranks));
        run_staged(ranks, [&](ThreadGroup& group) {
            const auto self = static_cast<std::size_t>(group.rank());
            const Sum<float> reduce(1);
            for (int turn = 0; turn < 300; ++turn) {
                auto tensors = inputs[self];
                const std::size_t segment_bytes = turn % 5 == 0 ? 256 : whole;
                group.open(turn % 3 == 0 ? 1 : 0);
                (turn * 7 % 4 < 2 ? staged : symmetric)(group, spans_of(tensors), reduce,
                                                        segment_bytes);
                if (tensors != expected) ++wrong[self];
            }
        });
        CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks)));
    }
}

TEST_CASE("staging moves what the cost says", "[staged]") {
    for (const int ranks : group_sizes) {
        auto inputs = inputs_of<F32>(ranks, {4099});
        const Blocks blocks(spans_of(inputs[0]), sizeof(float), ranks);
        const Sum<float> reduce(1);
        const std::size_t segment_bytes = 512;
        const auto segments = (blocks.largest_bytes() + segment_bytes - 1) / segment_bytes;
        for (const auto& group : run_staged(ranks, [&](ThreadGroup& rank) {
                 staged(rank, spans_of(inputs, rank.rank()), reduce, segment_bytes);
             })) {
            // A rank writes the others' blocks as they are, and its own one added up to each.
            const auto own = blocks.bytes(group.rank());
            CHECK(group.bytes() ==
                  blocks.total_bytes() - own + own * static_cast<std::size_t>(ranks - 1));
            CHECK(group.rounds() == segments);
            CHECK(group.answers() == segments);
        }
        std::size_t written = 0;
        for (const auto& group : run_staged(ranks, [&](ThreadGroup& rank) {
                 in_place(rank, spans_of(inputs, rank.rank()), reduce, segment_bytes);
             })) {
            written += group.bytes();
            CHECK(group.rounds() == 1);
            CHECK(group.answers() == 1);
        }
        // The sum is written to each of the others.
        CHECK(written == blocks.total_bytes() * static_cast<std::size_t>(ranks - 1));
        for (const auto& group : run_staged(ranks, [&](ThreadGroup& rank) {
                 symmetric(rank, spans_of(inputs, rank.rank()), reduce, segment_bytes);
             })) {
            CHECK(group.bytes() == blocks.total_bytes());
            CHECK(group.rounds() == 1);
        }
    }
}

}  // namespace

TEST_CASE("more ranks than a room has sections for go without", "[staged]") {
    const auto can_stage = [](int ranks) {
        std::vector<int> everybody(static_cast<std::size_t>(ranks));
        std::iota(everybody.begin(), everybody.end(), 0);
        return backends::can_stage(*wire::InprocHub(ranks).transport(0), everybody);
    };
    CHECK(can_stage(339));
    CHECK_FALSE(can_stage(340));
}
