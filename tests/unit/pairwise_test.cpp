#include "collectives/pairwise/pairwise_all_to_all.hpp"

#include "support/cases/bundles.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;

/// Runs the all-to-all on a thread per rank: outgoing[from][to] in, incoming[to][from] out.
std::vector<ThreadWire> exchange_all(const ByRank<int>& outgoing, ByRank<int>& incoming) {
    return on_each_rank(incoming, [&](ThreadWire& wire, TensorSpans own) {
        std::vector<std::span<const std::byte>> out;
        for (const auto& part : outgoing[static_cast<std::size_t>(wire.rank())])
            out.push_back(std::as_bytes(std::span(part)));
        pairwise::all_to_all(wire, out, own);
    });
}

TEST_CASE("three ranks by hand: what rank r has for rank q ends there", "[pairwise]") {
    const ByRank<int> outgoing = {{{1}, {2, 3}, {}},     // rank 0 to itself, to rank 1, to rank 2
                                  {{10}, {20, 30}, {}},  // rank 1
                                  {{}, {200}, {300}}};   // rank 2
    ByRank<int> incoming = {{{-1}, {-1}, {}}, {{-1, -1}, {-1, -1}, {-1}}, {{}, {}, {-1}}};
    const auto wires = exchange_all(outgoing, incoming);
    CHECK(incoming == ByRank<int>{{{1}, {10}, {}},            // on rank 0, from ranks 0, 1 and 2
                                  {{2, 3}, {20, 30}, {200}},  // on rank 1
                                  {{}, {}, {300}}});          // on rank 2
    CHECK(wires[0].bytes() == 2 * sizeof(int));  // nothing to rank 2, and no message to itself
}

/// How many elements go from one rank to another: none here and there.
std::size_t split(int from, int to) {
    return static_cast<std::size_t>((from * 5 + to * 3) % 4) * 11;
}
int value(int from, int to) {
    return from * 100 + to;
}

// 1 to 17 ranks; every pair has a length and a number of its own.
TEST_CASE("all-to-all with any splits", "[pairwise]") {
    for (const int ranks : group_sizes) {
        ByRank<int> outgoing(static_cast<std::size_t>(ranks)), incoming = outgoing;
        for (int rank = 0; rank < ranks; ++rank)
            for (int peer = 0; peer < ranks; ++peer) {
                outgoing[static_cast<std::size_t>(rank)].emplace_back(split(rank, peer),
                                                                      value(rank, peer));
                incoming[static_cast<std::size_t>(rank)].emplace_back(split(peer, rank), -1);
            }
        const auto wires = exchange_all(outgoing, incoming);
        for (int rank = 0; rank < ranks; ++rank) {
            std::size_t bytes = 0;
            for (int peer = 0; peer < ranks; ++peer) {
                const auto& part =
                    incoming[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)];
                CHECK(part == std::vector<int>(split(peer, rank), value(peer, rank)));
                if (peer != rank) bytes += split(rank, peer) * sizeof(int);
            }
            CHECK(wires[static_cast<std::size_t>(rank)].bytes() == bytes);
        }
    }
}

}  // namespace
