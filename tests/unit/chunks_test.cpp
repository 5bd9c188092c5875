// How a bundle is cut into chunks that travel one after the other, and how a chunk is packed.
#include "backends/device/chunks.hpp"

#include <array>

#include "backends/device/packing.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using guozhuang::backends::block_of;
using guozhuang::backends::chunks_of;
using guozhuang::backends::Fragment;
using guozhuang::backends::Packing;

namespace {

using Chunks = std::vector<std::vector<Fragment>>;

Chunks cut(std::vector<std::size_t> tensors) {
    return chunks_of(tensors, 1024);
}

}  // namespace

TEST_CASE("a large tensor is cut at multiples of the chunk, whatever comes before it") {
    const Chunks alone{{{0, 0, 1024}}, {{0, 1024, 1024}}, {{0, 2048, 100}}};
    CHECK(cut({2148}) == alone);
    const Chunks behind{{{1, 0, 1024}}, {{1, 1024, 1024}}, {{0, 0, 8}, {1, 2048, 100}}};
    CHECK(cut({8, 2148}) == behind);
}

TEST_CASE("small tensors share a chunk as long as there is room, by whole cache lines") {
    const Chunks together{{{0, 0, 4}, {1, 0, 64}, {2, 0, 65}}};
    CHECK(cut({4, 64, 65}) == together);
    CHECK(cut(std::vector<std::size_t>(16, 4)).size() == 1);
    const auto one_too_many = cut(std::vector<std::size_t>(17, 4));
    REQUIRE(one_too_many.size() == 2);
    CHECK(one_too_many.back() == std::vector<Fragment>{{16, 0, 4}});
}

TEST_CASE("tensors without elements are in no chunk") {
    CHECK(cut({}).empty());
    CHECK(cut({0, 0}).empty());
    const Chunks one{{{1, 0, 1024}}};
    CHECK(cut({0, 1024, 0}) == one);
}

TEST_CASE("tensors that touch are copied one by one, since they may be two allocations") {
    std::array<std::byte, 256> memory{};
    const std::array<TensorView, 3> tensors{TensorView{memory.data(), DType::f32, {16}},
                                            TensorView{&memory[64], DType::f32, {16}},
                                            TensorView{&memory[128], DType::f16, {32}}};
    engine::Bundle bundle;
    for (const auto& tensor : tensors) bundle.entries.push_back({.tensor = tensor});
    const std::array<Fragment, 3> fragments{Fragment{0, 0, 64}, {1, 0, 64}, {2, 0, 64}};
    const auto packing = backends::packed(bundle, fragments);
    REQUIRE(packing.copies.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(packing.copies[i].dtype == tensors.at(i).dtype);
        CHECK(packing.copies[i].tensor.data() == &memory.at(64 * i));
        CHECK(packing.copies[i].tensor.size() == 64);
        CHECK(packing.copies[i].first == 64 * i);
    }
    REQUIRE(packing.runs.size() == 2);
    CHECK(packing.runs[0].bytes == 128);
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
