#include "support/cases/in_place_cases.hpp"

#include <algorithm>
#include <cstddef>
#include <guozhuang/guozhuang.hpp>
#include <numeric>
#include <span>

#include "support/cases/error_cases.hpp"

namespace guozhuang::test {
namespace {

using Rows = std::vector<std::int64_t>;

constexpr auto bad_argument = ErrorCode::invalid_argument;

/// There may be none.
void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
    std::ranges::copy(from, to.begin());
}

std::int64_t sum(const Rows& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::int64_t rows_before(const Rows& rows, int rank) {
    return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
}

/// Rows `first`, `first` + 1 ... of a tensor of two dimensions.
TensorView block_of(const TensorView& whole, std::int64_t first, std::int64_t count) {
    const auto row = static_cast<std::size_t>(whole.shape[1]) * size_of(whole.dtype);
    return {static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(first) * row,
            whole.dtype,
            {count, whole.shape[1]},
            whole.device};
}

Tensor tensor_on(const Among& among, Tensor tensor) {
    tensor.device = among.device();
    return tensor;
}

void gather_in_place(const Among& among, Report& report, const Rows& rows, std::int64_t length) {
    const auto name = text_of("gathered in place, ", sum(rows), " rows of ", length);
    const auto self = static_cast<std::size_t>(among.rank());
    const auto expected = contribution(name, 0, DType::f32, {sum(rows), length});
    auto whole = tensor_on(among, Tensor(DType::f32, expected.shape));
    const auto row = static_cast<std::size_t>(length) * sizeof(float);
    const auto begin = static_cast<std::size_t>(rows_before(rows, among.rank())) * row;
    const auto bytes = static_cast<std::size_t>(rows[self]) * row;
    copy_bytes(std::span(expected.bytes).subspan(begin, bytes),
               std::span(whole.bytes).subspan(begin));
    const auto output = whole.view();
    auto options = options_of(among, name);
    options.outputs = {output};
    const auto own = block_of(output, rows_before(rows, among.rank()), rows[self]);
    auto handle = all_gather_async(own, options);
    const auto result = handle.take();
    whole.fetch();
    report.expect(whole.bytes == expected.bytes, name + ": the elements");
    report.expect(result.rows == rows && result.output == output.data, name + ": the result");
}

/// The other blocks of the input stay as they are.
void scatter_in_place(const Among& among, Report& report, const Reduce& reduce, const Rows& splits,
                      const Rows& rows) {
    const auto name =
        text_of("scattered in place, ", name_of(reduce.dtype), " ", name_of(reduce.how.op), " ",
                reduce.shape[0], " rows of ", reduce.shape[1], splits.empty() ? "" : ", split");
    const auto own_rows = rows[static_cast<std::size_t>(among.rank())];
    const auto given = contribution(name, among.rank(), reduce.dtype, reduce.shape);
    auto whole = tensor_on(among, given);
    const auto input = whole.view();
    auto options = options_of(among, name, reduce.how);
    const auto before = rows_before(rows, among.rank());
    options.outputs = {block_of(input, before, own_rows)};
    options.splits = splits;
    const auto result = reduce_scatter_async(input, options).take();
    report.expect(result.rows == Rows{own_rows}, name + ": the rows");
    whole.fetch();
    const auto row = static_cast<std::size_t>(reduce.shape[1]) * size_of(reduce.dtype);
    const auto begin = static_cast<std::size_t>(before) * row;
    const auto bytes = static_cast<std::size_t>(own_rows) * row;
    Tensor own(reduce.dtype, {own_rows, reduce.shape[1]});
    copy_bytes(std::span(whole.bytes).subspan(begin, bytes), own.bytes);
    const auto fault =
        fault_of(own, begin / size_of(reduce.dtype),
                 contributions(name, among.size(), reduce.dtype, reduce.shape), reduce.how);
    report.expect(fault.empty(), name + ": " + fault);
    copy_bytes(std::span(given.bytes).subspan(begin, bytes), std::span(whole.bytes).subspan(begin));
    report.expect(whole.bytes == given.bytes, name + ": other blocks of the input were changed");
}

Rows equal_parts(std::int64_t rows, int ranks) {
    Rows all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(share_of(rows, rank, ranks).second);
    return all;
}

/// Splits that do not fit their tensor or differ between ranks are errors, which name them.
void refused_splits(Session& session, Report& report) {
    const auto ranks = static_cast<std::size_t>(session.size());
    std::vector<float> numbers(3 * ranks);
    const auto refused = [&](const Rows& splits, const std::string& text) {
        expect_error(report, bad_argument, {"reduce_scatter 'x': " + text}, [&] {
            return reduce_scatter(numbers, {.name = "x", .splits = splits, .session = &session});
        });
    };
    refused(Rows(ranks + 1, 1), text_of(ranks + 1, " splits for ", ranks, " ranks"));
    refused(Rows(ranks, 4), "splits [4");
    Rows negative(ranks, 3);
    negative[0] = -3;
    refused(negative, "splits [-3");
    const AllreduceOptions splitting{.name = "x", .splits = Rows(ranks, 3), .session = &session};
    expect_error(report, bad_argument, {"allreduce 'x': it takes no splits"},
                 [&] { allreduce(numbers, splitting); });
    expect_error(report, bad_argument, {"reduce_scatter 'x': splits are of one tensor"}, [&] {
        return grouped_reduce_scatter(std::vector<TensorView>{numbers}, splitting);
    });
    if (ranks == 1) return;
    Rows own(ranks, 3);
    if (session.rank() == 1) {
        own[0] = 4;
        own[1] = 2;
    }
    const std::string more = ranks > 2 ? ", 3" : "";
    expect_error(
        report, ErrorCode::mismatch,
        {"reduce_scatter 'x': splits differ: [3, 3" + more, "on rank 1", text_of("; [4, 2", more)},
        [&] { return reduce_scatter(numbers, {.name = "x", .splits = own, .session = &session}); });
    expect_usable(session, report);
}

/// A rank that has joined adds nothing to parts that others are given.
void splits_beside_joined_rank(Session& session, Report& report) {
    const int last = session.size() - 1;
    if (session.rank() < last) {
        Rows splits(static_cast<std::size_t>(session.size()), 1);
        splits[0] = 5;
        std::vector<int> numbers(static_cast<std::size_t>(sum(splits)), 3);
        const auto result = reduce_scatter(
            numbers, {.name = "beside a joined rank", .splits = splits, .session = &session});
        report.expect(result.as<int>() == std::vector<int>(session.rank() == 0 ? 5 : 1, 3 * last),
                      "parts beside a joined rank");
    }
    join({.session = &session});
}

}  // namespace

void results_in_place(const Among& among, Report& report) {
    const int ranks = among.size();
    Rows uneven, backwards;
    for (int rank = 0; rank < ranks; ++rank) {
        uneven.push_back(rank == 1 ? 0 : rank + 1);
        backwards.push_back(rank == 0 ? 0 : 3 * (ranks - rank));
    }
    for (const std::int64_t length : {1, 700, 50'001}) {
        gather_in_place(among, report, Rows(static_cast<std::size_t>(ranks), 2), length);
        gather_in_place(among, report, uneven, length);
        for (const auto rows : {std::int64_t{ranks}, std::int64_t{2} * ranks + 1})
            scatter_in_place(among, report, {DType::f32, {rows, length}}, {},
                             equal_parts(rows, ranks));
        for (const auto& splits : {uneven, backwards})
            scatter_in_place(among, report, {DType::f32, {sum(splits), length}}, splits, splits);
    }
    for (const auto dtype : {DType::bf16, DType::f64, DType::i16, DType::u8})
        for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max})
            scatter_in_place(among, report, {dtype, {sum(backwards), 300}, {op}}, backwards,
                             backwards);
    scatter_in_place(among, report, {DType::f32, {sum(uneven), 300}, {ReduceOp::sum, 0.5, 4}},
                     uneven, uneven);
}

void misplaced_blocks(const Among& among, Report& report) {
    const int ranks = among.size(), self = among.rank();
    auto whole = tensor_on(among, Tensor(DType::f32, {2 * std::int64_t{ranks} + 1, 4}));
    const auto memory = whole.view();
    // The last rank gives the first block as its own, which is another rank's.
    if (ranks > 1) {
        auto options = options_of(among, "misplaced");
        options.outputs = {block_of(memory, 0, 2 * ranks)};
        const auto first = self == ranks - 1 ? 0 : 2 * self;
        const auto handle = all_gather_async(block_of(memory, first, 2), options);
        if (self < ranks - 1)
            handle.wait();
        else
            expect_error(
                report, bad_argument,
                {text_of("all_gather 'misplaced': output of rank ", among.rank_of_job(self),
                         " overlaps its input, which is not this rank's own block of it: "
                         "2 from rank")},
                [&] { handle.wait(); });
    }
    auto wrong = options_of(among, "wrong");
    wrong.outputs = {block_of(memory, 0, 2 * ranks)};
    auto half_a_row = block_of(memory, 0, 1);
    half_a_row.data = static_cast<std::byte*>(memory.data) + 8;
    const std::string only = " overlap; only this rank's own block may be input and output at once";
    expect_error(report, bad_argument, {"all_gather 'wrong': ", only},
                 [&] { return all_gather(half_a_row, wrong); });
    expect_error(report, bad_argument, {"all_gather 'wrong': ", only},
                 [&] { return all_gather(block_of(memory, 2 * ranks - 1, 2), wrong); });
    auto reducing = options_of(among, "wrong", {ReduceOp::sum});
    reducing.outputs = {block_of(memory, 2 * self + 1, 2)};
    expect_error(report, bad_argument, {"reduce_scatter 'wrong': ", only},
                 [&] { return reduce_scatter(block_of(memory, 0, 2 * ranks), reducing); });
    // In a group, the block of one tensor may not be another tensor's.
    reducing.outputs = {block_of(memory, 2 * self, 2), block_of(memory, 2 * self, 2)};
    const std::vector twice{block_of(memory, 0, 2 * ranks), block_of(memory, 0, 2 * ranks)};
    expect_error(report, bad_argument, {"reduce_scatter 'wrong': ", only},
                 [&] { return grouped_reduce_scatter(twice, reducing); });
    start_allreduce(among, "after misplaced blocks", {DType::f32, {4099}})(report);
}

const std::vector<RankCase> all_in_place_cases{results_in_place, misplaced_blocks, refused_splits,
                                               splits_beside_joined_rank};

}  // namespace guozhuang::test
