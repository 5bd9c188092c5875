// How tensors are cut into chunks that travel one after the other.

#include <array>

#include "collectives/layout/fragments.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;

namespace {

using Cuts = std::vector<std::vector<Fragment>>;

Cuts cut(std::vector<std::size_t> tensors) {
    return chunks_of(tensors, 1024);
}

}  // namespace

TEST_CASE("a large tensor is cut at multiples of the chunk, whatever comes before it") {
    const Cuts alone{{{0, 0, 1024}}, {{0, 1024, 1024}}, {{0, 2048, 100}}};
    CHECK(cut({2148}) == alone);
    const Cuts behind{{{1, 0, 1024}}, {{1, 1024, 1024}}, {{0, 0, 8}, {1, 2048, 100}}};
    CHECK(cut({8, 2148}) == behind);
}

TEST_CASE("small tensors share a chunk as long as there is room, by whole cache lines") {
    const Cuts together{{{0, 0, 4}, {1, 0, 64}, {2, 0, 65}}};
    CHECK(cut({4, 64, 65}) == together);
    CHECK(cut(std::vector<std::size_t>(16, 4)).size() == 1);
    const auto one_too_many = cut(std::vector<std::size_t>(17, 4));
    REQUIRE(one_too_many.size() == 2);
    CHECK(one_too_many.back() == std::vector<Fragment>{{16, 0, 4}});
}

TEST_CASE("tensors without elements are in no chunk") {
    CHECK(cut({}).empty());
    CHECK(cut({0, 0}).empty());
    const Cuts one{{{1, 0, 1024}}};
    CHECK(cut({0, 1024, 0}) == one);
}

TEST_CASE("blocks are of whole cache lines, and follow each other to the end of the memory") {
    std::array<std::byte, 1000> memory{};
    for (const std::size_t bytes : {0u, 8u, 64u, 65u, 200u, 1000u}) {
        const auto whole = std::span(memory).first(bytes);
        std::size_t first = 0;
        for (int block = 0; block < 3; ++block) {
            const auto part = block_of(whole, block, 3);
            CHECK((part.empty() || part.data() == whole.data() + first));
            CHECK((part.size() % 64 == 0 || first + part.size() == bytes));
            first += part.size();
        }
        CHECK(first == bytes);
    }
}
