#include "support/cases/output_cases.hpp"

#include <guozhuang/guozhuang.hpp>
#include <span>

#include "support/cases/unwinding_cases.hpp"

namespace guozhuang::test {
namespace {

constexpr auto invalid = ErrorCode::invalid_argument;

void operations_without_results(Session& session, Report& report) {
    std::vector<float> f(6), out(6);
    const Options options{.name = "x", .outputs = {out}, .session = &session};
    const AllreduceOptions reducing{.name = "x", .outputs = {out}, .session = &session};
    const std::string none = " 'x': it takes no outputs, because it has no results of its own";
    expect_error(report, invalid, {"allreduce" + none}, [&] { allreduce(f, reducing); });
    expect_error(report, invalid, {"allreduce" + none},
                 [&] { grouped_allreduce(std::vector<TensorView>{f}, reducing); });
    expect_error(report, invalid, {"broadcast" + none}, [&] { broadcast(f, 0, options); });
    expect_error(report, invalid, {"barrier" + none}, [&] { barrier(options); });
}

void outputs_unlike_their_tensor(Session& session, Report& report) {
    std::vector<float> f(6), out(12);
    std::vector<double> doubles(6);
    const TensorView tensor(f, {2, 3});
    const auto refused = [&](const std::vector<TensorView>& outputs, const std::string& text) {
        expect_error(report, invalid, {"all_gather 'x': " + text}, [&] {
            return all_gather(tensor, {.name = "x", .outputs = outputs, .session = &session});
        });
    };
    refused({out, out}, "2 outputs were given, but it needs 1, one for each tensor");
    refused({{doubles, {2, 3}}}, "output: it is of f64, but the tensor of f32");
    refused({TensorView(out.data(), DType::f32, {4, 3}, {DeviceKind::cuda, 0})},
            "output: it is on cuda 0, but the tensor on the host");
    refused({{out, {3, 4}}}, "output: shape [3, 4] differs from the tensor's, [2, 3], in more");
    refused({out}, "output: shape [12] differs from the tensor's, [2, 3], in more than dim 0");
    refused({out[0]}, "output: shape [] differs from the tensor's, [2, 3], in more than dim 0");
    refused({TensorView(nullptr, DType::f32, {2, 3})},
            "output: the tensor of shape [2, 3] has no memory");
    TensorView strided(out.data(), DType::f32, {2, 3});
    strided.strides = {6, 2};
    refused({strided}, "output: the tensor is not contiguous: shape [2, 3] with strides [6, 2]");
    const auto rows = share_of(6, session.rank(), session.size()).second;
    std::vector<float> too_long(static_cast<std::size_t>(rows) + 1);
    expect_error(report, invalid,
                 {text_of("reduce_scatter 'x': output: it has ", rows + 1,
                          " rows, but this rank gets ", rows, " of 6")},
                 [&] {
                     return reduce_scatter(
                         f, {.name = "x", .outputs = {too_long}, .session = &session});
                 });
}

void outputs_that_overlap(Session& session, Report& report) {
    std::vector<float> memory(30);
    const auto at = [&](std::size_t first, std::size_t count) {
        return TensorView(std::span(memory).subspan(first, count));
    };
    std::vector<std::int64_t> splits(static_cast<std::size_t>(session.size()));
    splits[0] = 10;
    expect_error(report, invalid,
                 {"all_to_all 'x': tensor [0] (40 bytes at ", ") and output [0] (40 bytes at "},
                 [&] {
                     return all_to_all(at(0, 10), splits,
                                       {.name = "x", .outputs = {at(9, 10)}, .session = &session});
                 });
    const auto refused = [&](const std::vector<TensorView>& tensors,
                             const std::vector<TensorView>& outputs, const std::string& text,
                             const std::string& more = "") {
        expect_error(report, invalid, {"all_gather 'x': " + text, more}, [&] {
            return grouped_all_gather(tensors,
                                      {.name = "x", .outputs = outputs, .session = &session});
        });
    };
    std::vector<double> doubles(6);
    refused({at(0, 5), at(5, 5)}, {at(10, 10), doubles}, "output [1]: it is of f64");
    refused({at(0, 5), at(5, 5)}, {at(10, 10), at(19, 2)}, "output [0] (40 bytes at ",
            ") and output [1] (8 bytes");
    refused({at(0, 5), at(5, 5)}, {at(10, 10), at(10, 10)}, "output [0] (40 bytes at ",
            ") and output [1] (40 bytes");
    refused({at(20, 5), at(5, 5)}, {at(10, 10), at(0, 6)}, "output [1] (24 bytes at ",
            ") and tensor [1] (20 bytes");
    // One that reaches over both.
    refused({at(2, 1), at(25, 2)}, {at(0, 29), at(29, 1)}, "output [0] (116 bytes at ",
            ") and tensor [1] (8 bytes");
}

/// A row of rank r, of which there are r + 1 for each rank that gets some.
constexpr std::int64_t row_length = 700;

std::vector<float> rows_of_rank(int rank, std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count * row_length),
                              static_cast<float>(rank + 1));
}

std::int64_t all_rows(int ranks) {
    return std::int64_t{ranks} * (ranks + 1) / 2;
}

Tensor whole_result(const Among& among) {
    Tensor whole(DType::f32, {all_rows(among.size()), row_length});
    for (std::size_t rank = 0, at = 0; rank < static_cast<std::size_t>(among.size()); ++rank)
        for (const auto number :
             rows_of_rank(static_cast<int>(rank), static_cast<std::int64_t>(rank) + 1))
            whole.store(at++, number);
    return whole;
}

Tensor tensor_of(const std::vector<float>& numbers, Device device) {
    Tensor tensor(DType::f32, {static_cast<std::int64_t>(numbers.size()) / row_length, row_length});
    std::memcpy(tensor.bytes.data(), numbers.data(), tensor.bytes.size());
    tensor.device = device;
    return tensor;
}

/// An operation that gives every rank whole_result(), into the last of these outputs.
using Start = std::function<Handle(const std::vector<TensorView>&)>;

/// "1 from rank 0; 2 from rank 1".
std::string rows_by_rank(const Among& among) {
    std::string text;
    for (int rank = 0; rank < among.size(); ++rank)
        text += text_of(rank > 0 ? "; " : "", rank + 1, " from rank ", among.rank_of_job(rank));
    return text;
}

/// With so many rows on the last rank.
void misfit_of_rows(const Among& among, Report& report, const std::string& label,
                    std::vector<TensorView> outputs, std::int64_t rows, const Start& start) {
    const bool is_odd = among.rank() == among.size() - 1;
    const auto wanted = all_rows(among.size());
    GuardedTensor output(DType::f32, {is_odd ? rows : wanted, row_length}, among.device());
    outputs.push_back(output.view());
    const auto handle = start(outputs);
    if (!is_odd || rows == wanted) {
        handle.wait();
        Result result{.dtype = DType::f32, .shape = output.view().shape, .rows = {}, .bytes = {}};
        result.device = among.device();
        result.output = output.view().data;
        report.expect(elements_of(result) == whole_result(among).bytes, label + ": the elements");
    } else {
        const auto self = among.rank_of_job(among.rank());
        const auto text = text_of(label, " of rank ", self, " has ", rows,
                                  " rows, but its result has ", wanted, ": ", rows_by_rank(among));
        expect_error(report, invalid, {text},
                     [&] { handle.wait(StreamRef{.device = among.device(), .native = nullptr}); });
        const auto error = error_of([&] { handle.wait(); });
        report.expect(error && error->what() == text && error->tensor() == "misfit" &&
                          error->ranks() == std::vector<int>{self},
                      label + ": its facts");
    }
    report.expect(output.is_intact_around(), label + ": written beyond the output");
}

/// Errors that the caller alone can see are thrown at once, on it alone; then all ranks gather
/// properly.
void refused_outputs(Session& session, Report& report) {
    if (session.rank() == session.size() - 1) {
        operations_without_results(session, report);
        outputs_unlike_their_tensor(session, report);
        outputs_that_overlap(session, report);
    }
    start_all_gather(Among(session).on({}), "x", DType::f32,
                     std::vector<std::int64_t>(static_cast<std::size_t>(session.size()), 2),
                     {3})(report);
    expect_usable(session, report);
}

/// A result in an output is read as any other.
void results_in_outputs(Session& session, Report& report) {
    const auto ranks = static_cast<std::size_t>(session.size());
    std::vector<int> numbers{session.rank(), -1}, all(2 * ranks), expected;
    for (int rank = 0; rank < session.size(); ++rank) expected.insert(expected.end(), {rank, -1});
    auto result = all_gather(numbers, {.outputs = {all}, .session = &session});
    report.expect(all == expected, "the output");
    report.expect(result.as<int>() == expected, "as numbers");
    report.expect(result.view().data == all.data(), "the view");
    report.expect(result.shape == Shape{2 * session.size()} &&
                      result.rows == std::vector<std::int64_t>(ranks, 2),
                  "shape and rows");
    // No rows, and rows without elements.
    std::vector<int> none;
    report.expect(all_gather(none, {.outputs = {none}, .session = &session}).as<int>().empty(),
                  "no rows");
    const TensorView empty_rows(none, {3, 0});
    expect_error(report, invalid,
                 {text_of("has 1 rows, but its result has ", 3 * ranks, ": 3 from rank")}, [&] {
                     return all_gather(
                         empty_rows,
                         {.name = "empty", .outputs = {{none, {1, 0}}}, .session = &session});
                 });
    const auto kept = std::make_shared<std::vector<int>>(2 * ranks);
    const std::weak_ptr<std::vector<int>> watched = kept;
    auto handle =
        all_gather_async(numbers, {.outputs = {*kept}, .keep_alive = kept, .session = &session});
    handle.wait();
    report.expect(*kept == expected && watched.use_count() == 1, "kept until it is complete");
}

/// Rank 0's arena goes before the last rank has submitted, with outputs or inputs in it.
void outputs_gone_in_flight(Session& session, Report& report) {
    constexpr std::size_t count = 50'000;
    const int last = session.size() - 1;
    const auto all = count * static_cast<std::size_t>(session.size());
    std::vector<float> numbers(count, static_cast<float>(session.rank() + 1)), outside(all);
    auto arena = std::make_unique<GradientArena>(all * 3 * sizeof(float), &session);
    const auto take = [&](std::size_t elements) {
        return std::span(static_cast<float*>(arena->allocate(elements * sizeof(float))), elements);
    };
    const auto inside = take(all), inside_too = take(all), input = take(count);
    std::ranges::copy(numbers, input.begin());
    const auto check = [&](const std::vector<float>& seen, const char* what) {
        for (std::size_t i = 0; i < all; ++i)
            if (seen[i] != static_cast<float>(i / count + 1)) return report.expect(false, what);
    };
    if (session.rank() != 0 && session.rank() == last) last_rank_after_rank0(session);
    const auto to_arena = all_gather_async(
        numbers, {.name = "to the arena", .outputs = {inside}, .session = &session});
    const auto from_arena = all_gather_async(
        input, {.name = "from the arena", .outputs = {outside}, .session = &session});
    std::vector<float> others(count, static_cast<float>(session.rank() + 1)), beside(all);
    const auto to_both =
        grouped_all_gather_async(std::vector<TensorView>{numbers, others},
                                 {.outputs = {inside_too, beside}, .session = &session});
    if (session.rank() == 0) {
        arena.reset();
        if (last > 0) last_rank_after_rank0(session);
    }
    from_arena.wait();
    check(outside, "an output outside of the arena that is gone");
    const auto result = to_arena.take();
    const auto results = to_both.take();
    check(beside, "an output of a group, outside of the arena that is gone");
    if (last == 0) return;  // it may have been complete before the arena went
    const bool is_gone = session.rank() == 0;
    report.expect((result.output == nullptr) == is_gone, "has it been forgotten?");
    check(result.as<float>(), "a result whose output is gone");
    report.expect((results[0].output == nullptr) == is_gone, "has it been forgotten in a group?");
    check(results[0].as<float>(), "a result of a group whose output is gone");
    report.expect(results[1].output == beside.data(), "only the one that is gone is forgotten");
}

}  // namespace

void misfits(const Among& among, Report& report) {
    const auto self = among.rank(), ranks = among.size();
    auto own = tensor_of(rows_of_rank(self, self + 1), among.device());
    auto for_all = tensor_of(rows_of_rank(self, std::int64_t{ranks} * (self + 1)), among.device());
    auto first = tensor_of(rows_of_rank(0, 2), among.device());
    const std::vector splits(static_cast<std::size_t>(ranks), std::int64_t{self} + 1);
    const auto input = own.view(), inputs = for_all.view();
    const std::vector group{first.view(), input};
    auto options = options_of(among, "misfit");
    const auto into = [&](const std::vector<TensorView>& outputs) -> const Options& {
        options.outputs = outputs;
        return options;
    };
    GuardedTensor first_output(DType::f32, {2 * std::int64_t{ranks}, row_length}, among.device());
    for (const auto rows :
         {all_rows(ranks) - 1, std::int64_t{0}, 2 * all_rows(ranks) + 1, all_rows(ranks)}) {
        misfit_of_rows(among, report, "all_gather 'misfit': output", {}, rows,
                       [&](const auto& outputs) { return all_gather_async(input, into(outputs)); });
        misfit_of_rows(
            among, report, "all_to_all 'misfit': output", {}, rows,
            [&](const auto& outputs) { return all_to_all_async(inputs, splits, into(outputs)); });
        misfit_of_rows(
            among, report, "all_gather 'misfit': output [1]", {first_output.view()}, rows,
            [&](const auto& outputs) { return grouped_all_gather_async(group, into(outputs)); });
    }
    report.expect(first_output.is_intact_around(), "written beyond the first output");
    start_allreduce(among, "after misfits", {DType::f32, {4099}})(report);
}

void outputs_beside_joined_rank(Session& session, Report& report) {
    const Among among(session);
    const int last = session.size() - 1;
    if (session.rank() < last) {
        auto input = tensor_of(rows_of_rank(session.rank(), 1), among.device());
        GuardedTensor output(DType::f32, {last, row_length}, among.device());
        auto options = options_of(among, "beside a joined rank");
        options.outputs = {output.view()};
        const auto result = all_gather(input.view(), options);
        check_place(report, options.name, result, &output);
        std::vector<std::int64_t> rows(static_cast<std::size_t>(last), 1);
        rows.push_back(0);
        report.expect(result.rows == rows, "none from the joined rank");
    }
    join({.session = &session});
}

const std::vector<RankCase> all_output_cases{refused_outputs, misfits, results_in_outputs,
                                             outputs_gone_in_flight, outputs_beside_joined_rank};

}  // namespace guozhuang::test
