// The figures in the algorithms' header comments and in docs/algorithms.md, printed by the
// algorithms themselves. Where one differs, the failure shows the right one, ready to be pasted.
#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "collectives/adasum/adasum_allreduce.hpp"
#include "collectives/hierarchical/hierarchical_all_gather.hpp"
#include "collectives/hierarchical/hierarchical_allreduce.hpp"
#include "collectives/hierarchical/hierarchical_reduce_scatter.hpp"
#include "collectives/pairwise/pairwise_all_to_all.hpp"
#include "collectives/staged/staged_allreduce.hpp"
#include "collectives/staged/symmetric_allreduce.hpp"
#include "collectives/tree/tree_broadcast.hpp"
#include "support/cases/allreduces.hpp"
#include "support/fakes/trace_wire.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;
using Lines = std::vector<std::string>;

/// Runs body(wire, end) on every rank; what a rank writes to `end` is its cell in the last row.
template <class Body>
Lines figure_of(int ranks, const Body& body) {
    Switchboard board(ranks);
    Trace trace(ranks);
    Lines ends(static_cast<std::size_t>(ranks));
    run_ranks(board, [&](int rank) {
        TraceWire wire(board, trace, rank);
        body(wire, ends[static_cast<std::size_t>(rank)]);
    });
    if (ends == Lines(ends.size())) ends.clear();
    return trace.figure(ends);
}

std::string contents_of(const std::string& path) {
    const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
    std::ostringstream text;
    text << std::ifstream(root / path).rdbuf();
    return text.str();
}

std::string join(const Lines& lines, const std::string& prefix) {
    std::string text;
    for (const auto& line : lines) text += prefix + line + "\n";
    return text;
}

void check_figure(const std::string& header, const Lines& figure) {
    const bool in_header =
        contents_of(header).find("//\n" + join(figure, "//   ") + "//\n") != std::string::npos;
    const bool in_docs =
        contents_of("docs/algorithms.md").find("```text\n" + join(figure, "") + "```\n") !=
        std::string::npos;
    // Catch would wrap the lines.
    if (!in_header || !in_docs)
        std::cout << "figure of " << header << ":\n" << join(figure, "//   ");
    INFO(header);
    CHECK(in_header);
    CHECK(in_docs);
}

/// One element per block, which holds this rank's part of it.
std::vector<Symbol> parts(int rank, int blocks) {
    std::vector<Symbol> symbols;
    for (int block = 0; block < blocks; ++block)
        symbols.push_back(SymbolTable::make("b" + std::to_string(block), std::to_string(rank)));
    return symbols;
}

std::vector<std::span<std::byte>> one_each(std::vector<Symbol>& symbols) {
    std::vector<std::span<std::byte>> spans;
    for (auto& symbol : symbols) spans.push_back(std::as_writable_bytes(std::span(&symbol, 1)));
    return spans;
}

std::string show(const std::vector<Symbol>& symbols) {
    return SymbolTable::show(std::as_bytes(std::span(symbols)));
}

/// The figure of an allreduce over one bundle; its end is the sum on every rank.
template <class Allreduce>
Lines allreduce_figure(int ranks, int blocks, const Allreduce& allreduce) {
    return figure_of(ranks, [&](TraceWire& wire, std::string& end) {
        auto symbols = parts(wire.rank(), blocks);
        if (blocks == 1) symbols[0] = SymbolTable::make("", std::to_string(wire.rank()));
        const std::vector<std::span<std::byte>> tensors{std::as_writable_bytes(std::span(symbols))};
        allreduce(wire, tensors, SymbolReduce(), 64);
        if (blocks == 1) end = show(symbols);
    });
}

/// The same for an allreduce that stages, one symbol per block.
template <class Allreduce>
Lines staged_figure(int ranks, int blocks, const Allreduce& allreduce) {
    Stages stages(ranks, 4096);
    Trace trace(ranks);
    Lines ends(static_cast<std::size_t>(ranks));
    Switchboard board(ranks);
    run_ranks(board, [&](int rank) {
        TraceGroup group(stages, trace, rank);
        auto symbols = parts(rank, blocks);
        if (blocks == 1) symbols[0] = SymbolTable::make("", std::to_string(rank));
        const std::vector tensors{std::as_writable_bytes(std::span(symbols))};
        allreduce(group, TensorSpans(tensors));
        ends[static_cast<std::size_t>(rank)] = show(symbols);
    });
    return trace.figure(ends);
}

/// The rule of a pair, where all that matters is who meets whom.
void add_symbols(std::span<std::byte> into, std::span<const std::byte> left,
                 std::span<const std::byte> right) {
    SymbolReduce().combine_partials(into, left, right);
}

TEST_CASE("figure: staged and symmetric", "[figures]") {
    const SymbolReduce reduce;
    check_figure(
        "collectives/staged/staged_allreduce.hpp",
        staged_figure(3, 3, [&](TraceGroup& group, TensorSpans tensors) {
            const Blocks blocks(tensors, sizeof(Symbol), 3);
            TestScratch scratch(staged::staged_scratch_bytes<TraceGroup>(3, 0));
            staged::StagedAllreduce<TraceGroup>(group, {blocks, scratch.span(), reduce, 64}).run();
        }));
    check_figure("collectives/staged/symmetric_allreduce.hpp",
                 staged_figure(3, 1, [&](TraceGroup& group, TensorSpans tensors) {
                     std::vector<std::span<const std::byte>> terms(3);
                     staged::symmetric_allreduce(group, tensors, sizeof(Symbol), reduce, terms);
                 }));
}

/// Two ranks on each of two hosts, one symbol per block. Messages between hosts fall between the
/// rounds.
template <class Body>
Lines hierarchical_figure(std::size_t steps_a_round, const Body& body) {
    std::deque<Stages> hosts;
    for (int i = 0; i < 2; ++i) hosts.emplace_back(2, 4096);
    Trace trace(4);
    Lines ends(4);
    Switchboard board(4);
    run_ranks(board, [&](int rank) {
        const int host = rank / 2;
        TraceGroup local(hosts[static_cast<std::size_t>(host)], trace, rank % 2,
                         {.columns = {2 * host, 2 * host + 1}, .steps_a_round = steps_a_round});
        body(local, trace, board, rank, ends[static_cast<std::size_t>(rank)]);
    });
    if (ends == Lines(ends.size())) ends.clear();
    return trace.figure(ends);
}

Lines hierarchical_allreduce_figure() {
    std::deque<Switchboard> columns;
    for (int i = 0; i < 2; ++i) columns.emplace_back(2);
    return hierarchical_figure(3, [&](TraceGroup& local, Trace& trace, Switchboard&, int rank,
                                      std::string&) {
        const int local_rank = rank % 2;
        TraceWire across(columns[static_cast<std::size_t>(local_rank)], trace, rank / 2,
                         {.columns = {local_rank, local_rank + 2}, .first_step = 1});
        auto symbols = parts(rank, 4);
        const Blocks blocks(std::vector{std::as_writable_bytes(std::span(symbols))}, sizeof(Symbol),
                            4);
        const std::span wires(&across, 1);
        TestScratch scratch(hierarchical::allreduce_scratch_bytes(local, wires, blocks, 64));
        const SymbolReduce reduce;
        hierarchical::Allreduce(local, wires, {blocks, scratch.span(), reduce, 64}, reduce).run();
    });
}

hierarchical::RanksByHost two_and_two(int rank) {
    return {std::array{2, 2}, rank};
}

Lines hierarchical_reduce_scatter_figure() {
    return hierarchical_figure(
        2, [&](TraceGroup& local, Trace& trace, Switchboard& board, int rank, std::string& end) {
            TraceWire wire(board, trace, rank, {.columns = {0, 1, 2, 3}, .first_step = 1});
            auto symbols = parts(rank, 4);
            std::vector<std::span<const std::byte>> blocks;
            for (auto& symbol : symbols) blocks.push_back(std::as_bytes(std::span(&symbol, 1)));
            const auto ranks = two_and_two(rank);
            hierarchical::ReduceScatter work(local, wire, ranks, blocks, 64);
            TestScratch scratch(work.scratch_bytes());
            const SymbolReduce reduce;
            auto& own = symbols[static_cast<std::size_t>(rank)];
            work.run({.input = blocks,
                      .output = std::as_writable_bytes(std::span(&own, 1)),
                      .scratch = scratch.span(),
                      .reduce = reduce,
                      .segment_bytes = 64},
                     reduce);
            end = SymbolTable::show(own);
        });
}

Lines hierarchical_all_gather_figure() {
    return hierarchical_figure(
        2, [&](TraceGroup& local, Trace& trace, Switchboard& board, int rank, std::string& end) {
            TraceWire wire(board, trace, rank, {.columns = {0, 1, 2, 3}, .first_step = 1});
            std::vector<Symbol> symbols(4);
            symbols[static_cast<std::size_t>(rank)] = SymbolTable::make("b" + std::to_string(rank));
            Blocks blocks;
            blocks.assign_blocks(one_each(symbols));
            const auto ranks = two_and_two(rank);
            const tree::BroadcastArgs args{
                .blocks = blocks, .scratch = {}, .segment_bytes = 64, .root = -1};
            hierarchical::AllGather work(local, wire, ranks, args);
            TestScratch scratch(work.scratch_bytes());
            work.run(Scratch(scratch.span()));
            end = show(symbols);
        });
}

TEST_CASE("figure: hierarchical", "[figures]") {
    check_figure("collectives/hierarchical/hierarchical_allreduce.hpp",
                 hierarchical_allreduce_figure());
    check_figure("collectives/hierarchical/hierarchical_reduce_scatter.hpp",
                 hierarchical_reduce_scatter_figure());
    check_figure("collectives/hierarchical/hierarchical_all_gather.hpp",
                 hierarchical_all_gather_figure());
}

TEST_CASE("figure: ring reduce-scatter", "[figures]") {
    check_figure("collectives/ring/ring_reduce_scatter.hpp",
                 figure_of(4, [](TraceWire& wire, std::string& end) {
                     auto symbols = parts(wire.rank(), 4);
                     TestScratch inbox(sizeof(Symbol));
                     ring::reduce_scatter(wire, one_each(symbols), inbox.span(), SymbolReduce());
                     end = SymbolTable::show(symbols[static_cast<std::size_t>(wire.rank())]);
                 }));
}

TEST_CASE("figure: ring all-gather", "[figures]") {
    check_figure("collectives/ring/ring_all_gather.hpp",
                 figure_of(4, [](TraceWire& wire, std::string& end) {
                     std::vector<Symbol> symbols(4);
                     const auto rank = static_cast<std::size_t>(wire.rank());
                     symbols[rank] = SymbolTable::make("b" + std::to_string(rank));
                     ring::all_gather(wire, one_each(symbols));
                     end = show(symbols);
                 }));
}

TEST_CASE("figure: pipelined ring", "[figures]") {
    check_figure("collectives/ring/pipelined_allreduce.hpp",
                 figure_of(2, [](TraceWire& wire, std::string&) {
                     // Two blocks of 32 elements in two segments of 64 bytes; all elements of a
                     // segment are alike, so one stands for them.
                     std::vector<Symbol> symbols;
                     for (const char* name : {"b0a", "b0b", "b1a", "b1b"}) {
                         symbols.push_back(SymbolTable::make(name, std::to_string(wire.rank())));
                         symbols.insert(symbols.end(), 15, SymbolTable::make("", ""));
                     }
                     const std::vector<std::span<std::byte>> tensors{
                         std::as_writable_bytes(std::span(symbols))};
                     pipelined_ring(wire, tensors, SymbolReduce(), 64);
                 }));
}

TEST_CASE("every ring adds in the order of the figure, left to right", "[figures]") {
    const auto note = [&](auto ring, const std::vector<std::size_t>& lengths) {
        std::vector<std::string> sums(5);
        run_ranks(5, [&](ThreadWire& wire) {
            BundleTensors<Symbol> tensors;
            const auto part = SymbolTable::make("", std::to_string(wire.rank()));
            for (const auto length : lengths) tensors.emplace_back(length, part);
            ring(wire, spans_of(tensors), SymbolReduce(), 64);
            for (const auto& tensor : tensors)
                sums[static_cast<std::size_t>(wire.rank())] += show(tensor) + " ";
        });
        CHECK(sums == std::vector<std::string>(5, sums[0]));
        return sums[0];
    };
    const std::string order = "1+2+3+4+0 2+3+4+0+1 3+4+0+1+2 4+0+1+2+3 0+1+2+3+4 ";
    CHECK(note(plain_ring<ThreadWire>, {5, 5}) == order + order);
    CHECK(note(pipelined_ring<ThreadWire>, {5}) == order);             // each segment in place
    CHECK(note(pipelined_ring<ThreadWire>, {5, 5}) == order + order);  // each segment in two runs
}

TEST_CASE("figure: direct exchange", "[figures]") {
    check_figure("collectives/direct/direct_reduce_scatter.hpp",
                 figure_of(4, [](TraceWire& wire, std::string& end) {
                     auto symbols = parts(wire.rank(), 4);
                     std::vector<std::span<const std::byte>> input;
                     for (const auto block : one_each(symbols)) input.push_back(block);
                     Symbol sum{};
                     TestScratch scratch(direct::reduce_scatter_scratch_bytes(wire, input, 64));
                     direct::reduce_scatter(
                         wire, {input, std::as_writable_bytes(std::span(&sum, 1)), scratch.span(),
                                SymbolReduce(), 64});
                     end = SymbolTable::show(sum);
                 }));
    check_figure("collectives/direct/direct_allreduce.hpp",
                 allreduce_figure(3, 3, direct_exchange<TraceWire>));
}

TEST_CASE("figure: recursive doubling", "[figures]") {
    check_figure("collectives/recursive/doubling_allreduce.hpp",
                 allreduce_figure(5, 1, recursive_doubling<TraceWire>));
}

TEST_CASE("figure: adasum", "[figures]") {
    check_figure(
        "collectives/adasum/adasum_allreduce.hpp",
        figure_of(3, [](TraceWire& wire, std::string& end) {
            std::vector<Symbol> symbols{SymbolTable::make("", std::to_string(wire.rank()))};
            const auto tensors = one_each(symbols);
            const SymbolReduce reduce;
            TestScratch scratch(
                adasum::allreduce_scratch_bytes<TraceWire>(tensors, reduce, wire.size()));
            adasum::allreduce(wire, {tensors, scratch.span(), reduce, add_symbols});
            end = show(symbols);
        }));
}

TEST_CASE("figure: parameter server", "[figures]") {
    check_figure("collectives/direct/direct_allreduce.hpp",
                 allreduce_figure(4, 1, one_server<TraceWire>));
}

TEST_CASE("figure: broadcast", "[figures]") {
    check_figure(
        "collectives/tree/tree_broadcast.hpp", figure_of(7, [](TraceWire& wire, std::string& end) {
            std::vector<Symbol> symbols{wire.rank() == 1 ? SymbolTable::make("x") : Symbol{}};
            const Blocks blocks(one_each(symbols), sizeof(Symbol), 1);
            TestScratch scratch(tree::broadcast_scratch_bytes(wire, blocks, 64));
            tree::broadcast(wire, {blocks, scratch.span(), 64, 1});
            end = show(symbols);
        }));
}

TEST_CASE("figure: all-to-all", "[figures]") {
    check_figure("collectives/pairwise/pairwise_all_to_all.hpp",
                 figure_of(4, [](TraceWire& wire, std::string& end) {
                     std::vector<Symbol> outgoing, incoming(4);
                     for (int peer = 0; peer < 4; ++peer)
                         outgoing.push_back(SymbolTable::make(std::to_string(wire.rank()) + "." +
                                                              std::to_string(peer)));
                     std::vector<std::span<const std::byte>> out;
                     for (const auto part : one_each(outgoing)) out.push_back(part);
                     pairwise::all_to_all(wire, out, one_each(incoming));
                     end = show(incoming);
                 }));
}

}  // namespace
