#include "collectives/layout/blocks.hpp"

#include <numeric>

#include "collectives/layout/chunks.hpp"
#include "support/cases/bundles.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using test::BundleTensors;

BundleTensors<std::int32_t> counted(const std::vector<std::size_t>& counts) {
    BundleTensors<std::int32_t> tensors;
    std::int32_t next = 0;
    for (const auto count : counts) {
        tensors.emplace_back(count);
        std::iota(tensors.back().begin(), tensors.back().end(), next);
        next += static_cast<std::int32_t>(count);
    }
    return tensors;
}

std::vector<std::int32_t> elements_of(const Blocks& blocks, const Segment& segment) {
    std::vector<std::int32_t> elements(segment.bytes / sizeof(std::int32_t));
    const auto room = std::as_writable_bytes(std::span(elements));
    const auto bytes = blocks.gather(segment, room);
    if (!bytes.empty() && bytes.data() != room.data())
        std::memcpy(room.data(), bytes.data(), bytes.size());
    return elements;
}

TEST_CASE("a block is the b-th part of each tensor", "[blocks]") {
    auto tensors = counted({5, 0, 7, 1});  // 0..4, none, 5..11, 12
    const Blocks blocks(test::spans_of(tensors), 4, 3);
    CHECK(elements_of(blocks, blocks.whole(0)) == std::vector<std::int32_t>{0, 1, 5, 6, 7, 12});
    CHECK(elements_of(blocks, blocks.whole(1)) == std::vector<std::int32_t>{2, 3, 8, 9});
    CHECK(elements_of(blocks, blocks.whole(2)) == std::vector<std::int32_t>{4, 10, 11});
    CHECK(blocks.largest_bytes() == 24);
    CHECK(blocks.total_bytes() == 52);
    CHECK(blocks.bytes(3) == 0);
}

TEST_CASE("a block of a bundle that is cut as one is the b-th part of it", "[blocks]") {
    auto tensors = counted({5, 0, 7, 1});
    const Blocks blocks(test::spans_of(tensors), 4, 3, Cut::bundle);
    CHECK(elements_of(blocks, blocks.whole(0)) == std::vector<std::int32_t>{0, 1, 2, 3, 4});
    CHECK(elements_of(blocks, blocks.whole(1)) == std::vector<std::int32_t>{5, 6, 7, 8});
    CHECK(elements_of(blocks, blocks.whole(2)) == std::vector<std::int32_t>{9, 10, 11, 12});
}

TEST_CASE("a segment in one run is used in place, one across runs is copied", "[blocks]") {
    auto tensors = counted({8, 8});
    const Blocks blocks(test::spans_of(tensors), 4, 2);
    const Segment inside{1, 4, 12}, across{1, 8, 16}, second{1, 16, 16};
    CHECK(blocks.in_place(inside).data() == reinterpret_cast<std::byte*>(&tensors[0][5]));
    CHECK(blocks.in_place(second).data() == reinterpret_cast<std::byte*>(&tensors[1][4]));
    CHECK(blocks.in_place(across).empty());
    CHECK(blocks.in_place({1, 4, 0}).empty());
    CHECK(elements_of(blocks, across) == std::vector<std::int32_t>{6, 7, 12, 13});

    std::vector<std::int32_t> fresh{60, 70, 120, 130};
    const auto room = std::as_writable_bytes(std::span(fresh));
    CHECK(blocks.landing(across, room).data() == room.data());
    CHECK(blocks.landing(inside, room).data() == blocks.in_place(inside).data());
    blocks.scatter(across, room);
    CHECK(tensors[0] == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 60, 70});
    CHECK(tensors[1] == std::vector<std::int32_t>{8, 9, 10, 11, 120, 130, 14, 15});
}

TEST_CASE("tensors that are neighbours in memory are one run", "[blocks]") {
    std::vector<std::int32_t> arena(10);
    const auto bytes = std::as_writable_bytes(std::span(arena));
    const std::span<std::byte> tensors[] = {bytes.first(12), bytes.subspan(12, 0),
                                            bytes.subspan(12)};
    Blocks blocks(tensors, 4, 1);
    CHECK(blocks.in_place(blocks.whole(0)).size() == 40);
    blocks.assign(tensors, 4, 2);  // the first halves of the tensors are no neighbours
    CHECK(blocks.in_place(blocks.whole(0)).empty());
    CHECK(blocks.bytes(0) == 24);
    CHECK(blocks.bytes(1) == 16);
}

TEST_CASE("blocks are cut anew if anything about the cut is new", "[blocks]") {
    auto tensors = counted({5, 7}), others = counted({5, 7}), longer = counted({5, 8});
    Blocks blocks(test::spans_of(tensors), 4, 3);
    const auto second = [&] { return elements_of(blocks, blocks.whole(1)); };
    const auto of_tensors = std::vector<std::int32_t>{2, 3, 8, 9};
    blocks.assign(test::spans_of(tensors), 4, 3);
    CHECK(second() == of_tensors);
    blocks.assign(test::spans_of(tensors), 4, 3, Cut::bundle);
    CHECK(second() == std::vector<std::int32_t>{4, 5, 6, 7});
    blocks.assign(test::spans_of(tensors), 4, 2, Cut::bundle);
    CHECK(second() == std::vector<std::int32_t>{6, 7, 8, 9, 10, 11});
    blocks.assign(test::spans_of(tensors), 8, 2, Cut::bundle);
    CHECK(blocks.element_bytes() == 8);
    blocks.assign(test::spans_of(longer), 4, 3);
    CHECK(second() == std::vector<std::int32_t>{2, 3, 8, 9, 10});
    others[0][2] = 20;
    blocks.assign(test::spans_of(others), 4, 3);
    CHECK(second() == std::vector<std::int32_t>{20, 3, 8, 9});
}

TEST_CASE("an empty bundle has empty blocks", "[blocks]") {
    const Blocks blocks({}, 4, 3);
    CHECK(blocks.count() == 3);
    CHECK(blocks.largest_bytes() == 0);
    CHECK(Chunks(blocks.largest_bytes(), 1024).count() == 0);
}

TEST_CASE("chunks cover every block once, in even segments of whole cache lines", "[blocks]") {
    for (const std::size_t largest : {1u, 64u, 65u, 1000u, 4096u, 100'001u}) {
        for (const std::size_t segment_bytes : {1u, 64u, 100u, 4096u}) {
            const Chunks chunks(largest, segment_bytes);
            CHECK(chunks.segment_bytes() % 64 == 0);
            CHECK(chunks.segment_bytes() <= std::max<std::size_t>(segment_bytes, 64));
            for (const std::size_t block : {largest, largest - 1, largest / 2}) {
                std::size_t end = 0;
                for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
                    const auto segment = chunks.segment(3, block, chunk);
                    CHECK(segment.offset == end);
                    end += segment.bytes;
                }
                CHECK(end == block);
            }
        }
    }
}

TEST_CASE("chunks take turns, and a new one takes the slot of one that is done", "[blocks]") {
    std::string calls;
    const auto start = [&](std::size_t slot, std::size_t chunk) {
        calls += "start" + std::to_string(chunk) + "@" + std::to_string(slot) + " ";
    };
    const auto advance = [&](std::size_t slot, int step) {
        calls += std::to_string(slot) + "." + std::to_string(step) + " ";
    };
    keep_in_flight(Chunks(256, 64), 2, start, advance);
    CHECK(calls == "start0@0 start1@1 start2@2 0.0 1.0 2.0 0.1 start3@0 1.1 2.1 0.0 0.1 ");
}

TEST_CASE("as many chunks are in flight as fill the window, and three at least", "[blocks]") {
    CHECK(Chunks(1024, 64).slots() == 3);
    CHECK(Chunks(1024, 64, 64).slots() == 3);
    CHECK(Chunks(1024, 64, 5 * 64).slots() == 5);
    CHECK(Chunks(1024, 64, 100 * 64).slots() == 16);
    CHECK(Chunks(64, 64, 100 * 64).slots() == 1);
}

TEST_CASE("scratch comes in cache lines, and never more than there is", "[blocks]") {
    test::TestScratch memory(128);
    Scratch scratch(memory.span());
    CHECK(scratch.cut(1).data() == memory.span().data());
    CHECK(scratch.cut(64).data() == memory.span().data() + 64);
    CHECK(scratch.cut(0).empty());
    CHECK_THROWS_AS(scratch.cut(1), Error);
}

}  // namespace
