// Descriptions of requests: what is taken for one is, byte for byte, what encodes it.
#include "protocol/description.hpp"

#include "fuzz/fuzz.hpp"

namespace guozhuang::fuzz {

using namespace protocol;

void decode(Input input) {
    Description description;
    if (refused({ErrorCode::wire}, [&] { description = decode_description(input); })) return;
    require(std::ranges::equal(encode(description), input), "a description has one encoding");
    // Beside another one, it can be told what differs.
    const SubmissionGroup groups[] = {
        {share(Description{.tensors = {{"loss", DType::f32, {4}}}}), {0, 2}},
        {share(description), {1}}};
    std::string tensor;
    require(!describe_mismatch("loss", groups, tensor).empty(), "there are words for what differs");
}

std::vector<Seed> seeds() {
    return {
        encode({.tensors = {{"loss", DType::f32, {4}}}}),
        encode(
            {.operation = OperationKind::all_gather, .tensors = {{"rows", DType::i64, {-1, 3}}}}),
        encode({.operation = OperationKind::broadcast,
                .root = 2,
                .device = DeviceKind::cuda,
                .tensors = {{"w", DType::f64, {}}}}),
        encode({.op = ReduceOp::average,
                .prescale = 0.5,
                .group = true,
                .tensors = {{"", DType::f16, {2}}, {"", DType::f16, {0}}}}),
        encode(
            {.operation = OperationKind::create_process_set, .ranks = {0, 2, 300}, .tensors = {}}),
        encode({.operation = OperationKind::barrier, .tensors = {}}),
        encode({.tensors = {{"loss", DType::f32, {4}}},
                .agreements = {{"loss", "values", "1"}, {"", "passes", "2"}}}),
        encode({.tensors = {{"loss", DType::f32, {4}}}, .discarded = "no such file"}),
    };
}

}  // namespace guozhuang::fuzz
