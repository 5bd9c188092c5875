// Reduce-scatter: the tensors of all ranks are added up, and each rank receives some rows of the
// sum. The inputs stay as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <guozhuang/types.hpp>
#include <span>
#include <utility>
#include <vector>

#include "collectives/concepts/operation_site.hpp"
#include "collectives/direct/direct_reduce_scatter.hpp"
#include "collectives/hierarchical/hierarchical_reduce_scatter.hpp"
#include "collectives/layout/rows.hpp"
#include "collectives/layout/scratch.hpp"
#include "collectives/select.hpp"

namespace guozhuang {

/// `rows`: of each rank. `output`: this rank's rows of the sum. Not by levels if the sum of a host,
/// which is rounded before it crosses, could overflow where the whole does not.
template <OperationSite S>
void reduce_and_scatter(S& site, const SiteTensor& tensor, std::span<const std::int64_t> rows,
                        std::span<std::byte> output) {
    const bool by_levels = site.stages() || (site.has_levels() && !site.policy().reproducible &&
                                             tensor.dtype != DType::f16);
    const int ranks = site.wire().size();
    const auto segment_bytes = selection::direct_segment_bytes(ranks, site.policy().segment_bytes);
    const auto& reduce = site.reduce(tensor.dtype, site.op());
    std::span<const std::byte> given = tensor.memory;
    std::vector<std::span<const std::byte>> blocks;
    const auto cut = [&] {
        blocks = cut_rows(given, rows, tensor.row_bytes);
        if (by_levels) blocks = site.in_ring_order(std::span(std::as_const(blocks)));
    };
    cut();
    const auto args_with = [&](std::size_t scratch_bytes) -> direct::ReduceScatterArgs {
        const bool scales = site.prescale() != 1;
        Scratch scratch(
            site.scratch(padded(scratch_bytes) + (scales ? padded(given.size()) : std::size_t{0})));
        const auto working = scratch.cut(scratch_bytes);
        if (scales) {
            const auto scaled = scratch.cut(given.size());
            if (!given.empty()) std::memcpy(scaled.data(), given.data(), given.size());
            site.scale(tensor.dtype, scaled, site.prescale());
            given = scaled;
            cut();
        }
        return {.input = blocks,
                .output = output,
                .scratch = working,
                .reduce = reduce,
                .segment_bytes = segment_bytes};
    };
    if (!by_levels)
        return direct::reduce_scatter(site.wire(), args_with(direct::reduce_scatter_scratch_bytes(
                                                       site.wire(), blocks, segment_bytes)));
    site.by_levels(given.size(), [&](auto& local, const auto& by_host) {
        hierarchical::ReduceScatter sum(local, site.ring(), by_host, blocks, segment_bytes);
        sum.run(args_with(sum.scratch_bytes()), site.within(tensor.dtype));
    });
}

/// The average of integers, as the reduce_scatter of the same tensor in i64.
template <OperationSite S>
void average_and_scatter(S& site, const SiteTensor& tensor, std::span<const std::int64_t> rows,
                         std::span<std::byte> output) {
    const auto width = size_of(tensor.dtype);
    const auto count = tensor.memory.size() / width;
    const auto integers = site.wide_integers(count + output.size() / width);
    const auto input = integers.first(count), averages = integers.subspan(count);
    site.widen(input, tensor.dtype, tensor.memory);
    reduce_and_scatter(site,
                       {.memory = std::as_writable_bytes(input),
                        .dtype = DType::i64,
                        .rows = tensor.rows,
                        .row_bytes = tensor.row_bytes / width * sizeof(std::int64_t)},
                       rows, std::as_writable_bytes(averages));
    site.narrow(tensor.dtype, output, averages);
}

template <>
inline constexpr auto run_operation<OperationKind::reduce_scatter> = []<OperationSite S>(S& site) {
    const int rank = site.wire().rank(), ranks = site.wire().size();
    for (std::size_t i = 0; i < site.tensors(); ++i) {
        const auto tensor = site.tensor(i);
        const auto rows = reduce_scatter_rows(tensor.rows, tensor.splits, ranks);
        const std::span own(&rows[static_cast<std::size_t>(rank)], 1);
        const auto output = site.result(i, own).front();
        if (ranks > 1 && site.averages_in_i64(tensor.dtype))
            average_and_scatter(site, tensor, rows, output);
        else
            reduce_and_scatter(site, tensor, rows, output);
    }
};

}  // namespace guozhuang
