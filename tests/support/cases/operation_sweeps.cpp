#include "support/cases/operation_sweeps.hpp"

namespace guozhuang::test {

std::vector<std::int64_t> counts_for(int ranks, std::int64_t largest) {
    std::vector<std::int64_t> counts{0, 1, ranks - 1, ranks, ranks + 1, 4099, largest};
    std::ranges::sort(counts);
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
}

RankCase allreduce_sweep(std::int64_t largest_count) {
    return [largest_count](Session& session, Report& report) {
        for (const auto dtype : all_dtypes) {
            for (const auto op : all_reduce_ops) {
                if (!is_defined(op, dtype)) continue;
                std::vector<Finish> started;
                for (const auto count : counts_for(session.size(), largest_count))
                    started.push_back(start_allreduce(session,
                                                      label_of("allreduce", dtype, op, {count}),
                                                      {dtype, {count}, {op}}));
                for (const auto& finish : started) finish(report);
            }
        }
    };
}

void allreduce_scales(Session& session, Report& report) {
    for (const auto dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
        for (const auto op : all_reduce_ops) {
            for (const auto& [prescale, postscale] :
                 {std::pair{0.5, 1.0}, {1.0, -3.0}, {1.25, 0.3}}) {
                for (const std::int64_t count : {5, 20'000}) {
                    if (count > 5 && op != ReduceOp::average) continue;
                    const auto name =
                        label_of("scaled", dtype, op, {count}) + text_of(prescale, " ", postscale);
                    start_allreduce(session, name,
                                    {dtype, {count}, {op, prescale, postscale}})(report);
                    if (op == ReduceOp::adasum) continue;  // it is no reduce_scatter
                    start_reduce_scatter(session, name + " scattered",
                                         {dtype, {count}, {op, prescale, postscale}})(report);
                }
            }
        }
    }
}

void repeated_allreduces(Session& session, Report& report) {
    for (const auto& [dtype, count] : {std::pair{DType::f32, std::int64_t{20'011}},
                                       {DType::f16, 350'003},
                                       {DType::f32, 300'007}}) {
        const auto own = contribution("repeated", session.rank(), dtype, {count});
        std::vector<std::byte> first;
        int others = 0;
        for (int turn = 0; turn < 40; ++turn) {
            auto tensor = own;
            allreduce(tensor.view(), {.name = "repeated", .session = &session});
            if (first.empty()) first = tensor.bytes;
            others += tensor.bytes != first ? 1 : 0;
        }
        report.expect(others == 0, text_of("sums of ", count, " ", name_of(dtype),
                                           " that differ from the first: ", others));
    }
}

void grouped_allreduces(Session& session, Report& report) {
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::adasum}) {
        std::vector<Reduce> reduces;
        for (const auto dtype : all_dtypes) {
            if (!is_defined(op, dtype)) continue;
            for (const Shape& shape : {Shape{3, 7}, Shape{}, Shape{0, 5}, Shape{20'011}})
                reduces.push_back({dtype, shape, {op}});
        }
        start_grouped_allreduce(session, text_of("group ", name_of(op)), reduces)(report);
    }
}

void grouped_all_gathers(Session& session, Report& report) {
    const auto ranks = static_cast<std::size_t>(session.size());
    Tensor first = contribution("gathered a", session.rank(), DType::i16, {session.rank(), 2});
    Tensor second = contribution("gathered b", session.rank(), DType::f64, {3});
    const std::vector to_gather{first.view(), second.view()};
    const auto rows = session.size() * (session.size() - 1) / 2;
    GuardedTensor first_output(DType::i16, {rows, 2}, {}),
        second_output(DType::f64, {3 * session.size()}, {});
    const auto gathering =
        grouped_all_gather_async(to_gather, {.name = "grouped all_gather, async",
                                             .outputs = {first_output.view(), second_output.view()},
                                             .session = &session});
    const auto gathered =
        grouped_all_gather(to_gather, {.name = "grouped all_gather", .session = &session});
    const auto gathered_async = gathering.take();
    std::vector<Tensor> firsts, seconds;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        firsts.push_back(contribution("gathered a", static_cast<int>(rank), DType::i16,
                                      {static_cast<std::int64_t>(rank), 2}));
        seconds.push_back(contribution("gathered b", static_cast<int>(rank), DType::f64, {3}));
    }
    check_place(report, "grouped all_gather, first", gathered_async.front(), &first_output);
    check_place(report, "grouped all_gather, second", gathered_async.back(), &second_output);
    for (const auto* results : {&gathered, &gathered_async}) {
        report.expect(results->size() == 2, "grouped all_gather: as many results as tensors");
        check_parts(report, "grouped all_gather, first", results->front(), firsts);
        check_parts(report, "grouped all_gather, second", results->back(), seconds);
    }
}

void grouped_reduce_scatters(Session& session, Report& report) {
    const Reduce integers{DType::i32, {11, 3}, {ReduceOp::sum}},
        reals{DType::f32, {2}, {ReduceOp::sum}};
    Tensor third = contribution("scattered a", session.rank(), integers.dtype, integers.shape);
    Tensor fourth = contribution("scattered b", session.rank(), reals.dtype, reals.shape);
    const std::vector to_scatter{third.view(), fourth.view()};
    const auto rows_of_share = [&](std::int64_t rows) {
        return share_of(rows, session.rank(), session.size()).second;
    };
    GuardedTensor first_output(DType::i32, {rows_of_share(11), 3}, {}),
        second_output(DType::f32, {rows_of_share(2)}, {});
    const auto scattering = grouped_reduce_scatter_async(
        to_scatter, {.name = "grouped reduce_scatter, async",
                     .outputs = {first_output.view(), second_output.view()},
                     .session = &session});
    const auto scattered =
        grouped_reduce_scatter(to_scatter, {.name = "grouped reduce_scatter", .session = &session});
    const auto scattered_async = scattering.take();
    check_place(report, "scattered a", scattered_async.front(), &first_output);
    check_place(report, "scattered b", scattered_async.back(), &second_output);
    for (const auto* results : {&scattered, &scattered_async}) {
        check_reduce_scattered(session, report, "scattered a", results->front(), integers);
        check_reduce_scattered(session, report, "scattered b", results->back(), reals);
    }
}

void grouped_operations(Session& session, Report& report) {
    grouped_allreduces(session, report);
    grouped_all_gathers(session, report);
    grouped_reduce_scatters(session, report);
}

void broadcast_sweep(Session& session, Report& report) {
    for (int root = 0; root < session.size(); ++root) {
        std::vector<Finish> started;
        for (const auto dtype : all_dtypes)
            for (const Shape& shape :
                 {Shape{}, Shape{0}, Shape{1}, Shape{7, 3}, Shape{0, 4}, Shape{4099}})
                started.push_back(start_broadcast(
                    session, label_of(text_of("broadcast ", root), dtype, ReduceOp::sum, shape),
                    dtype, shape, root));
        for (const auto& finish : started) finish(report);
    }
    start_broadcast(session, "large broadcast", DType::f32, {300'007}, session.size() - 1)(report);
}

void all_gather_sweep(Session& session, Report& report) {
    for (const auto dtype : all_dtypes) {
        for (int shift = 0; shift < 3; ++shift) {
            std::vector<std::int64_t> rows;
            for (int rank = 0; rank < session.size(); ++rank)
                rows.push_back((rank + shift) % 3 * (shift == 2 ? 500 : 1));
            for (const Shape& row : {Shape{}, Shape{5}, Shape{2, 3}})
                start_all_gather(
                    session, label_of("all_gather", dtype, ReduceOp::sum, with_rows(shift, row)),
                    dtype, rows, row)(report);
        }
    }
    start_all_gather(session, "all_gather of nothing", DType::f32,
                     std::vector<std::int64_t>(static_cast<std::size_t>(session.size()), 0),
                     {4})(report);
    start_all_gather(session, "all_gather of empty rows", DType::f32,
                     std::vector<std::int64_t>(static_cast<std::size_t>(session.size()), 2),
                     {0})(report);
}

void all_to_all_sweep(Session& session, Report& report) {
    const auto ranks = static_cast<std::size_t>(session.size());
    for (const auto dtype : all_dtypes) {
        for (std::size_t variant = 0; variant < 3; ++variant) {
            Splits splits(ranks, std::vector<std::int64_t>(ranks));
            for (std::size_t from = 0; from < ranks; ++from)
                for (std::size_t to = 0; to < ranks; ++to)
                    splits[from][to] =
                        from == variant ? 0
                                        : static_cast<std::int64_t>((from + 2 * to + variant) % 4 *
                                                                    (variant == 1 ? 300 : 1));
            start_all_to_all(session,
                             label_of(text_of("all_to_all ", variant), dtype, ReduceOp::sum, {}),
                             dtype, splits, {3})(report);
        }
    }
    Tensor equal = contribution("equal parts", session.rank(), DType::i32, {2 * session.size()});
    const auto result = all_to_all(equal.view(), {}, {.name = "equal parts", .session = &session});
    std::vector<Tensor> parts;
    for (int from = 0; from < session.size(); ++from)
        parts.push_back(rows_of(contribution("equal parts", from, DType::i32, equal.shape),
                                2 * session.rank(), 2));
    check_parts(report, "equal parts", result, parts);
}

void reduce_scatter_sweep(Session& session, Report& report) {
    for (const auto dtype : all_dtypes)
        for (const auto op : all_reduce_ops)
            for (const std::int64_t rows : {0, 1, session.size() - 1, session.size() + 1, 1000}) {
                if (!is_defined(op, dtype) || op == ReduceOp::adasum) continue;
                start_reduce_scatter(session, label_of("reduce_scatter", dtype, op, {rows, 3}),
                                     {dtype, {rows, 3}, {op}})(report);
            }
    start_reduce_scatter(session, "large reduce_scatter",
                         {DType::f32, {200'003}, {ReduceOp::average}})(report);
}

void message_sweep(Session& session, Report& report) {
    std::vector<Finish> started;
    for (int from = 0; from < session.size(); ++from)
        for (int to = 0; to < session.size(); ++to)
            for (const int number : {0, 1, 2, 3}) {
                const auto tag =
                    static_cast<std::uint16_t>(session.rank() == from ? number : 3 - number);
                const std::int64_t count = tag == 3 ? 100'000 : 10 * tag;
                if (from == to && number > 1) continue;  // here one call starts both sides
                started.push_back(start_message(session,
                                                text_of("message ", from, " ", to, " ", tag),
                                                {from, to, tag, DType::i16, {count, 2}}));
            }
    for (const auto& finish : started) finish(report);
}

void messages_in_order(Session& session, Report& report) {
    const int right = (session.rank() + 1) % session.size(),
              left = (session.rank() + session.size() - 1) % session.size();
    std::vector<int> out{1, 2, 3}, in{0, 0, 0};
    std::vector<Handle> handles;
    for (auto& number : out)
        handles.push_back(send_async(number, right, {.tag = 9, .session = &session}));
    for (auto& number : in)
        handles.push_back(recv_async(number, left, {.tag = 9, .session = &session}));
    for (const auto& handle : handles) handle.wait();
    report.expect(in == out, "messages of one tag arrive in order");
}

}  // namespace guozhuang::test
