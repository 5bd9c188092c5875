#include "protocol/description.hpp"

#include <guozhuang/error.hpp>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "support/runner/catch.hpp"

namespace guozhuang::protocol {
namespace {

Description allreduce(Shape shape = {4}, DType dtype = DType::f32) {
    return {.operation = OperationKind::allreduce,
            .tensors = {{"weight", dtype, std::move(shape)}}};
}

Description group(std::vector<TensorDescription> tensors) {
    return {.operation = OperationKind::allreduce, .group = true, .tensors = std::move(tensors)};
}

/// The ranks 0, 1, ... submit these.
std::string mismatch(const std::vector<Description>& submitted, std::string_view name = "weight",
                     std::string* tensor = nullptr) {
    std::vector<SubmissionGroup> groups;
    for (std::size_t rank = 0; rank < submitted.size(); ++rank)
        groups.push_back({share(submitted[rank]), {static_cast<int>(rank)}});
    std::string about;
    auto text = describe_mismatch(name, groups, about);
    if (tensor != nullptr) *tensor = about;
    return text;
}

/// Descriptions of which each differs from the first in one thing.
std::vector<Description> variants() {
    std::vector<Description> all(17, allreduce());
    all[1].operation = OperationKind::broadcast;
    all[2].op = ReduceOp::max;
    all[3].prescale = 0.5;
    all[4].postscale = 0.5;
    all[5].root = -1;
    all[6].device = DeviceKind::cuda;
    all[7].group = true;
    all[8].tensors.push_back({"more", DType::i64, {}});
    all[9].tensors[0].name = "other";
    all[10].tensors[0].dtype = DType::boolean;
    all[11].tensors[0].shape = {-1, 3, std::numeric_limits<std::int64_t>::max()};
    all[12].tensors.clear();
    all[13].ranks = {0, 7, max_ranks - 1};
    all[14].agreements = {{"weight", "colours", "red"}, {"", "sizes", ""}};
    all[15].discarded = "no such file";
    all[16].splits = {0, 7, std::numeric_limits<std::int64_t>::max()};
    return all;
}

}  // namespace

TEST_CASE("allreduces that differ in anything have different fingerprints") {
    std::set<std::uint64_t> found;
    std::size_t tried = 0;
    const auto add = [&](std::string_view name, std::uint64_t number, const Description& of,
                         DType dtype, const Shape& shape) {
        found.insert(fingerprint_of_allreduce(name, number, of, dtype, shape));
        ++tried;
    };
    const Description sum{.operation = OperationKind::allreduce};
    auto changed = sum;
    add("weight", 0, sum, DType::f32, {2, 3});
    add("bias", 0, sum, DType::f32, {2, 3});
    add("", 1, sum, DType::f32, {2, 3});
    add("", 2, sum, DType::f32, {2, 3});
    add("#1 allreduce", 0, sum, DType::f32, {2, 3});
    add("weight", 0, sum, DType::i32, {2, 3});
    for (const Shape& shape : {Shape{3, 2}, Shape{6}, Shape{2, 3, 1}, Shape{}, Shape{1}})
        add("weight", 0, sum, DType::f32, shape);
    changed.op = ReduceOp::max;
    add("weight", 0, changed, DType::f32, {2, 3});
    changed = sum;
    changed.prescale = 0.5;
    add("weight", 0, changed, DType::f32, {2, 3});
    std::swap(changed.prescale, changed.postscale);
    add("weight", 0, changed, DType::f32, {2, 3});
    CHECK(found.size() == tried);
    add("weight", 0, sum, DType::f32, {2, 3});
    CHECK(found.size() == tried - 1);
}

TEST_CASE("descriptions come back, and different ones have different bytes and fingerprints") {
    std::set<Bytes> encodings;
    std::set<std::uint64_t> fingerprints;
    for (const auto& description : variants()) {
        const auto bytes = encode(description);
        CHECK(decode_description(bytes) == description);
        encodings.insert(bytes);
        fingerprints.insert(fingerprint(bytes));
    }
    CHECK(encodings.size() == variants().size());
    CHECK(fingerprints.size() == variants().size());
}

TEST_CASE("a description that ends too early, or goes on, is refused") {
    for (const auto& description : variants()) {
        auto bytes = encode(description);
        for (std::size_t length = 0; length < bytes.size(); ++length)
            CHECK_THROWS_AS(decode_description(std::span(bytes).first(length)), Error);
        bytes.push_back({});
        CHECK_THROWS_AS(decode_description(bytes), Error);
    }
}

TEST_CASE("a root that is no number of a rank is refused, not cut to one") {
    auto bytes = encode({.root = 0, .tensors = {}});
    const std::ptrdiff_t behind_two_enumerators = 2;
    const auto root = bytes.begin() + behind_two_enumerators;
    *root = std::byte{6};
    REQUIRE(decode_description(bytes).root == 3);  // in zigzag code, too
    // The number 2^32 in zigzag code.
    const std::vector beyond{std::byte{0x80}, std::byte{0x80}, std::byte{0x80}, std::byte{0x80},
                             std::byte{0x20}};
    bytes.insert(bytes.erase(root), beyond.begin(), beyond.end());
    CHECK_THROWS_AS(decode_description(bytes), Error);
}

TEST_CASE("a mismatch of each thing that must match") {
    const auto all = variants();
    const std::tuple<std::size_t, std::string, std::string, std::string> expected[] = {
        {2, "reduce ops", "sum", "max"},     {3, "prescales", "1", "0.5"},
        {4, "postscales", "1", "0.5"},       {5, "roots", "0", "-1"},
        {6, "device kinds", "host", "cuda"}, {7, "kinds of request", "a single tensor", "a group"},
        {8, "tensors", "none", "'more'"},    {9, "tensors", "'weight'", "'other'"},
        {10, "dtypes", "f32", "bool"},       {11, "shapes", "[4]", "[any, 3, 9223372036854775807]"},
        {12, "tensors", "'weight'", "none"}};
    for (const auto& [which, what, first, second] : expected)
        CHECK(mismatch({all[0], all[which]}) == "allreduce 'weight': " + what + " differ: " +
                                                    first + " on rank 0; " + second + " on rank 1");
    CHECK(mismatch({all[0], all[1]}) ==
          "'weight': operations differ: allreduce on rank 0; broadcast on rank 1");
    CHECK(mismatch({allreduce({}), allreduce({1})}) ==
          "allreduce 'weight': shapes differ: [] on rank 0; [1] on rank 1");
}

TEST_CASE(
    "ranks that agree in the thing that differs are listed together, in the order of the lowest "
    "rank") {
    auto other = allreduce({5});
    other.tensors[0].dtype = DType::f64;
    CHECK(mismatch({allreduce({4}), other, allreduce({6})}) ==
          "allreduce 'weight': dtypes differ: f32 on ranks 0,2; f64 on rank 1");
}

TEST_CASE("of several things that differ the first is named") {
    auto other = allreduce({5});
    other.root = 3;
    other.prescale = 0.5;
    other.tensors[0].dtype = DType::f64;
    CHECK(mismatch({allreduce({4}), other}) ==
          "allreduce 'weight': roots differ: 0 on rank 0; 3 on rank 1");
    other.root = 0;
    CHECK(mismatch({allreduce({4}), other}) ==
          "allreduce 'weight': prescales differ: 1 on rank 0; 0.5 on rank 1");
}

TEST_CASE("a mismatch inside a group names the tensor") {
    std::string tensor;
    const auto text = mismatch({group({{"a", DType::f32, {1}}, {"b", DType::f32, {2}}}),
                                group({{"a", DType::f32, {1}}, {"b", DType::f32, {3}}})},
                               "both", &tensor);
    CHECK(text == "allreduce 'b': shapes differ: [2] on rank 0; [3] on rank 1");
    CHECK(tensor == "b");
}

TEST_CASE("a mismatch of groups names the tensors that only some ranks have") {
    const auto of = [](const std::string& names) {
        std::vector<TensorDescription> tensors;
        for (const char name : names) tensors.push_back({std::string(1, name), DType::f32, {1}});
        return group(std::move(tensors));
    };
    const auto text = [&](const std::vector<Description>& submitted) {
        return mismatch(submitted, "step");
    };
    CHECK(text({of("abc"), of("ac"), of("abc")}) ==
          "allreduce 'step': tensors differ: 'b' on ranks 0,2; none on rank 1");
    CHECK(text({of("abc"), of("aBc"), of("abc")}) ==
          "allreduce 'step': tensors differ: 'b' on ranks 0,2; 'B' on rank 1");
    CHECK(text({of("ab"), of("ba")}) ==
          "allreduce 'a': tensor names differ: 'a' on rank 0; 'b' on rank 1");
    CHECK(text({of("a"), of("axyzuvw")}) ==
          "allreduce 'step': tensors differ: none on rank 0; 'x', 'y', 'z', 'u', 'v' and 1 more on "
          "rank 1");
    const TensorDescription numbered{"", DType::f32, {1}}, longer{"", DType::f32, {2}};
    CHECK(text({group({numbered, numbered}), group({numbered})}) ==
          "allreduce 'step': numbers of tensors differ: 2 on rank 0; 1 on rank 1");
    CHECK(text({group({numbered, numbered}), group({numbered, longer})}) ==
          "allreduce 'step[1]': shapes differ: [1] on rank 0; [2] on rank 1");
}

TEST_CASE("what ranks must agree on besides is compared in its order, behind all else") {
    auto one = allreduce(), other = allreduce(), none = allreduce();
    one.agreements = {{"", "sizes", "1"}, {"b", "colours", "red"}};
    other.agreements = {{"", "sizes", "1"}, {"b", "colours", "blue"}};
    std::string tensor;
    CHECK(mismatch({one, other, one}, "weight", &tensor) ==
          "allreduce 'b': colours differ: red on ranks 0,2; blue on rank 1");
    CHECK(tensor == "b");
    CHECK(mismatch({none, one}, "weight", &tensor) ==
          "allreduce 'weight': sizes differ: none on rank 0; 1 on rank 1");
    CHECK(tensor == "weight");
    other.tensors[0].dtype = DType::f64;
    CHECK(mismatch({one, other}) ==
          "allreduce 'weight': dtypes differ: f32 on rank 0; f64 on rank 1");
}

TEST_CASE("who has discarded a round is named with the reason") {
    auto one = allreduce(), other = allreduce();
    one.discarded = "no such file";
    other.discarded = "bad batch";
    const SubmissionGroup groups[] = {{share(one), {1}}, {share(other), {2, 3}}};
    CHECK(describe_discard("weight", groups) ==
          "allreduce 'weight' was discarded by rank 1: no such file; by ranks 2,3: bad batch");
}

TEST_CASE("requests that differ in bytes alone are told apart, too") {
    auto positive = allreduce(), negative = allreduce();
    positive.prescale = std::numeric_limits<double>::quiet_NaN();
    negative.prescale = std::bit_cast<double>(std::bit_cast<std::uint64_t>(positive.prescale) ^ 1);
    CHECK(mismatch({positive, negative}) == "'weight': the requests differ");
}

}  // namespace guozhuang::protocol
