// Allreduce: the tensors of all ranks become their sum, average, product, minimum, maximum or
// Adasum. Tensors of one dtype are added up together if they are summed in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <span>
#include <type_traits>
#include <vector>

#include "collectives/adasum/adasum_allreduce.hpp"
#include "collectives/allreduces.hpp"
#include "collectives/concepts/operation_site.hpp"
#include "collectives/select.hpp"

namespace guozhuang {

/// Tensors that one algorithm adds up; they have the same dtype and order.
struct FusedTensors {
    DType dtype = DType::f32;
    selection::OrderClass order = selection::OrderClass::tree;
    std::size_t largest_bytes = 0, total_bytes = 0;
    std::vector<std::span<std::byte>> tensors = {};
};

template <OperationSite S>
std::vector<FusedTensors> fuse(S& site) {
    std::vector<FusedTensors> all;
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        const auto bytes = tensor.memory.size();
        const auto order = selection::order_class_of(bytes, site.policy());
        auto fused = std::ranges::find_if(all, [&](const FusedTensors& each) {
            return each.dtype == tensor.dtype && each.order == order;
        });
        if (fused == all.end()) {
            fused = all.insert(all.end(), {.dtype = tensor.dtype, .order = order});
            fused->tensors.reserve(site.tensors());
        }
        fused->tensors.push_back(tensor.memory);
        fused->largest_bytes = std::max(fused->largest_bytes, bytes);
        fused->total_bytes += bytes;
    }
    return all;
}

/// Uses the algorithm that is selected for tensors of these sizes.
template <OperationSite S>
void add_up(S& site, const FusedTensors& fused) {
    const auto [algorithm, segment_bytes] = selection::choose({.tensor_bytes = fused.largest_bytes,
                                                               .bundle_bytes = fused.total_bytes,
                                                               .ranks = site.wire().size(),
                                                               .policy = site.policy()});
    [[maybe_unused]] const auto traced =
        site.trace(name_of(algorithm), fused.total_bytes, fused.tensors.size());
    auto sum = site.sum_site(fused.dtype, fused.tensors, fused.total_bytes, segment_bytes);
    allreduce(algorithm, sum);
}

/// Sums in i64, in parts of a size that all ranks agree on, so that memory is bounded.
template <OperationSite S>
void average_integers(S& site, const FusedTensors& fused) {
    constexpr std::size_t most_elements = std::size_t{1} << 20;
    const auto width = size_of(fused.dtype);
    for (const auto& tensor : fused.tensors)
        for (std::size_t first = 0; first < tensor.size(); first += most_elements * width) {
            const auto part =
                tensor.subspan(first, std::min(most_elements * width, tensor.size() - first));
            const auto integers = site.wide_integers(part.size() / width);
            const auto memory = std::as_writable_bytes(integers);
            site.widen(integers, fused.dtype, part);
            add_up(site, {.dtype = DType::i64,
                          .largest_bytes = memory.size(),
                          .total_bytes = memory.size(),
                          .tensors = {memory}});
            site.narrow(fused.dtype, part, integers);
        }
}

template <OperationSite S>
void add_by_adasum(S& site, const FusedTensors& fused) {
    using SiteWire = std::remove_reference_t<decltype(site.wire())>;
    const auto& reduce = site.reduce(fused.dtype, ReduceOp::sum);
    [[maybe_unused]] const auto traced =
        site.trace("adasum", fused.total_bytes, fused.tensors.size());
    adasum::allreduce(site.wire(),
                      {.tensors = fused.tensors,
                       .scratch = site.scratch(adasum::allreduce_scratch_bytes<SiteWire>(
                           fused.tensors, reduce, site.wire().size())),
                       .reduce = reduce,
                       .pair = site.adasum_pair(fused.dtype)});
}

/// The allreduce of one rank, whatever the op. Writes nothing without scales: the memory may be
/// read-only.
template <OperationSite S>
void scale_alone(S& site) {
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        for (const auto factor : {site.prescale(), site.postscale()})
            if (factor != 1) site.scale(tensor.dtype, tensor.memory, factor);
    }
}

template <>
inline constexpr auto run_operation<OperationKind::allreduce> = []<OperationSite S>(S& site) {
    if (site.wire().size() == 1) return scale_alone(site);
    for (const auto& fused : fuse(site)) {
        if (site.prescale() != 1)
            for (const auto& tensor : fused.tensors)
                site.scale(fused.dtype, tensor, site.prescale());
        if (site.op() == ReduceOp::adasum)
            add_by_adasum(site, fused);
        else if (site.averages_in_i64(fused.dtype))
            average_integers(site, fused);
        else
            add_up(site, fused);
    }
};

}  // namespace guozhuang
