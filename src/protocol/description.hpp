#pragma once

#include <cstdint>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/operation_kind.hpp"
#include "protocol/fields.hpp"

namespace guozhuang::protocol {

/// One tensor of a request, as far as ranks must agree on it.
struct TensorDescription {
    std::string name = {};  ///< empty: named by the request, in a group also by its index
    DType dtype = DType::f32;
    Shape shape = {};  ///< extent -1 where ranks may differ: dim 0 of all_gather and all_to_all
    friend bool operator==(const TensorDescription&, const TensorDescription&) = default;
};

/// Everything about a request that must be the same on all ranks. A single operation has one
/// tensor, a group or a plan's bundle several, a barrier none.
struct Description {
    OperationKind operation = OperationKind::allreduce;
    ReduceOp op = ReduceOp::sum;
    double prescale = 1, postscale = 1;
    int root = 0;  ///< rank of the world
    DeviceKind device = DeviceKind::host;
    bool group = false;           ///< executed as one and never fused with others
    std::vector<int> ranks = {};  ///< create_process_set: the set's world ranks
    std::vector<TensorDescription> tensors = {};
    std::vector<std::int64_t> splits = {};   ///< reduce_scatter: rows for each rank; empty: equal
    std::vector<Agreement> agreements = {};  ///< other values that must be the same
    /// Why this rank wants the round to fail on all ranks; empty: it does not.
    std::string discarded = {};
    friend bool operator==(const Description&, const Description&) = default;
};

template <>
inline constexpr auto fields_of<TensorDescription> =
    std::tuple{Field{&TensorDescription::name}, Field{&TensorDescription::dtype, "dtypes"},
               Field{&TensorDescription::shape, "shapes"}};
static_assert(lists_every_member<TensorDescription>());

template <>
inline constexpr auto fields_of<Agreement> =
    std::tuple{Field{&Agreement::tensor}, Field{&Agreement::what}, Field{&Agreement::value}};
static_assert(lists_every_member<Agreement>());

/// A new field needs a member above and a line here; for a new type, print() in description.cpp
/// says how errors show it.
template <>
inline constexpr auto fields_of<Description> =
    std::tuple{Field{&Description::operation, "operations"},
               Field{&Description::op, "reduce ops"},
               Field{&Description::root, "roots"},
               Field{&Description::prescale, "prescales"},
               Field{&Description::postscale, "postscales"},
               Field{&Description::device, "device kinds"},
               Field{&Description::group, "kinds of request"},
               Field{&Description::ranks, "ranks"},
               Field{&Description::tensors, "tensors"},
               Field{&Description::splits, "splits"},
               Field{&Description::agreements, "agreements"},
               Field{&Description::discarded}};
static_assert(lists_every_member<Description>());
template <>
inline constexpr std::size_t most_of<std::vector<TensorDescription>> = max_tensors;

/// To bytes for messages, and back: equal descriptions give equal bytes. decode throws Error(wire)
/// for malformed bytes.
Bytes encode(const Description& description);
Description decode_description(std::span<const std::byte> bytes);

/// 64 bits of the encoded bytes (XXH3).
std::uint64_t fingerprint(std::span<const std::byte> encoded) noexcept;
/// 64 bits (XXH3) of all that ranks must agree on before an allreduce of one tensor on the host:
/// its name, or its number if it has none; op, scales, dtype and shape. Differs from fingerprint()
/// of the encoded bytes. `description`: without the tensor.
std::uint64_t fingerprint_of_allreduce(std::string_view name, std::uint64_t number,
                                       const Description& description, DType dtype,
                                       const Shape& shape) noexcept;

/// Made once, then shared by all its users.
using SharedDescription = std::shared_ptr<const Description>;

SharedDescription share(Description description);
/// Whether both describe the same, bit for bit; null equals only null.
bool are_same(const SharedDescription& one, const SharedDescription& other) noexcept;
/// Whether both are the same except for their tensors and agreements.
bool are_same_but_for_tensors(const Description& one, const Description& other) noexcept;

/// Ranks that submitted the same description.
struct SubmissionGroup {
    SharedDescription description;
    std::vector<int> ranks;  ///< ascending
};

/// "allreduce 'layer3.weight': shapes differ: [64, 3, 7, 7] on ranks 0,1,3; [64, 3, 3, 3] on rank
/// 2": the first difference between the submission groups (two at least). `tensor` receives the
/// name of the tensor it is about.
std::string describe_mismatch(std::string_view name, std::span<const SubmissionGroup> groups,
                              std::string& tensor);

/// "allreduce '#1 optimizer/bundle 2' was discarded by rank 1: no such file; by ranks 2,3: bad
/// batch", if those are the submission groups.
std::string describe_discard(std::string_view name, std::span<const SubmissionGroup> groups);

}  // namespace guozhuang::protocol
