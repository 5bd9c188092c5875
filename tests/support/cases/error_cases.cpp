#include "support/cases/error_cases.hpp"

namespace guozhuang::test {

void expect_usable(Session& session, Report& report) {
    int one = 1;
    allreduce(one, {.name = "the next operation", .session = &session});
    report.expect_equal(one, session.size(), "the next operation");
}

std::string all_but_last(const Session& session) {
    std::string text = session.size() == 2 ? "rank 0" : "ranks 0";
    for (int rank = 1; rank + 1 < session.size(); ++rank) text += text_of(",", rank);
    return text;
}

std::string sides(const Session& session, const std::string& a, const std::string& b) {
    return text_of(a, " on ", all_but_last(session), "; ", b, " on rank ", session.size() - 1);
}

void mismatched_tensors(Session& session, Report& report) {
    if (session.size() < 2) return;
    std::vector<float> f(12);
    std::vector<int> n(12);
    const auto side = [&](const char* a, const char* b) { return sides(session, a, b); };
    const std::span<float> span(f);
    const TensorView wide(f, {4, 3}), tall(span, {3, 4}), flat(f), integers(n);
    const auto reduce = [&](const TensorView& tensor) {
        return [&session, tensor] {
            allreduce(tensor, {.name = "layer3.weight", .session = &session});
        };
    };
    expect_mismatch(session, report,
                    "allreduce 'layer3.weight': shapes differ: " + side("[4, 3]", "[3, 4]"),
                    reduce(wide), reduce(tall));
    expect_mismatch(session, report,
                    "allreduce 'layer3.weight': shapes differ: " + side("[12]", "[3, 4]"),
                    reduce(flat), reduce(tall));
    expect_mismatch(session, report,
                    "allreduce 'layer3.weight': dtypes differ: " + side("f32", "i32"), reduce(flat),
                    reduce(integers));
    const auto cast = [&](const TensorView& tensor, int root) {
        return [&session, tensor, root] {
            broadcast(tensor, root, {.name = "state", .session = &session});
        };
    };
    expect_mismatch(session, report, "broadcast 'state': shapes differ: " + side("[4, 3]", "[12]"),
                    cast(wide, 0), cast(flat, 0));
    expect_mismatch(session, report, "broadcast 'state': roots differ: " + side("0", "1"),
                    cast(wide, 0), cast(wide, 1));
    const auto gather = [&](const TensorView& tensor) {
        return [&session, tensor] {
            return all_gather(tensor, {.name = "rows", .session = &session});
        };
    };
    expect_mismatch(session, report,
                    "all_gather 'rows': shapes differ: " + side("[any, 3]", "[any, 4]"),
                    gather(wide), gather(tall));
    expect_mismatch(session, report,
                    "all_gather 'rows': shapes differ: " + side("[any, 3]", "[any]"), gather(wide),
                    gather(flat));
    expect_mismatch(session, report,
                    "'rows': operations differ: " + side("all_gather", "allreduce"), gather(wide),
                    [&] { allreduce(wide, {.name = "rows", .session = &session}); });
    std::vector<std::int64_t> splits(static_cast<std::size_t>(session.size()), 0);
    const auto exchange = [&](const TensorView& tensor) {
        splits[0] = tensor.shape[0];
        return all_to_all(tensor, splits, {.name = "tokens", .session = &session});
    };
    expect_mismatch(
        session, report, "all_to_all 'tokens': shapes differ: " + side("[any, 3]", "[any, 4]"),
        [&] { return exchange(wide); }, [&] { return exchange(tall); });
}

void mismatched_options(Session& session, Report& report) {
    if (session.size() < 2) return;
    std::vector<float> numbers(4);
    const auto side = [&](const char* a, const char* b) { return sides(session, a, b); };
    const auto reduce = [&](ReduceOp op, double prescale, double postscale) {
        return [&, op, prescale, postscale] {
            allreduce(numbers, {.name = "g",
                                .op = op,
                                .prescale = prescale,
                                .postscale = postscale,
                                .session = &session});
        };
    };
    const auto sum = reduce(ReduceOp::sum, 1, 1);
    expect_mismatch(session, report, "allreduce 'g': reduce ops differ: " + side("sum", "max"), sum,
                    reduce(ReduceOp::max, 1, 1));
    expect_mismatch(session, report, "allreduce 'g': prescales differ: " + side("1", "0.5"), sum,
                    reduce(ReduceOp::sum, 0.5, 1));
    expect_mismatch(session, report, "allreduce 'g': postscales differ: " + side("1", "2"), sum,
                    reduce(ReduceOp::sum, 1, 2));
    const TensorView on_fake(numbers.data(), DType::f32, {4}, {DeviceKind::cuda, 0});
    expect_mismatch(session, report, "allreduce 'g': device kinds differ: " + side("host", "cuda"),
                    sum, [&] { allreduce(on_fake, {.name = "g", .session = &session}); });
    const auto scatter = [&](ReduceOp op) {
        return [&, op] {
            return reduce_scatter(numbers, {.name = "s", .op = op, .session = &session});
        };
    };
    expect_mismatch(session, report,
                    "reduce_scatter 's': reduce ops differ: " + side("sum", "average"),
                    scatter(ReduceOp::sum), scatter(ReduceOp::average));
}

void mismatched_groups(Session& session, Report& report) {
    if (session.size() < 2) return;
    std::vector<float> a(4), b(6), c(4);
    const auto side = [&](const char* x, const char* y) { return sides(session, x, y); };
    const auto group = [&](std::vector<TensorView> tensors) {
        return [&session, tensors = std::move(tensors)] {
            grouped_allreduce(tensors, {.name = "group", .session = &session});
        };
    };
    expect_mismatch(session, report,
                    "allreduce 'group': numbers of tensors differ: " + side("2", "1"),
                    group({a, b}), group({a}));
    expect_mismatch(
        session, report,
        "allreduce 'group': kinds of request differ: " + side("a group", "a single tensor"),
        group({a}), [&] { allreduce(a, {.name = "group", .session = &session}); });
    // All or none: the first tensor, which matches, is not touched either.
    a.assign(4, 1);
    expect_mismatch(session, report, "allreduce 'group[1]': shapes differ: " + side("[6]", "[4]"),
                    group({a, b}), group({a, c}));
    report.expect(a == std::vector<float>(4, 1), "a group that fails changes nothing");
}

void three_sides(Session& session, Report& report) {
    if (session.size() < 3) return;
    std::vector<float> numbers(static_cast<std::size_t>(std::min(session.rank(), 2) + 1));
    const auto error =
        error_of([&] { allreduce(numbers, {.name = "sizes", .session = &session}); });
    std::string last;
    for (int rank = 2; rank < session.size(); ++rank) last += text_of(rank > 2 ? "," : "", rank);
    const auto text =
        text_of("allreduce 'sizes': shapes differ: [1] on rank 0; [2] on rank 1; [3] on rank",
                session.size() > 3 ? "s " : " ", last);
    report.expect_equal(error ? std::string(error->what()) : "no error", text, "three sides");
    report.expect(error && error->tensor() == "sizes" && error->operation() == "allreduce",
                  "facts");
    expect_usable(session, report);
}

namespace {

constexpr auto bad = ErrorCode::invalid_argument;

void bad_ranks(Session& session, Report& report) {
    std::vector<float> f(6);
    const Options named{.name = "x", .session = &session};
    const auto last = text_of("there are ranks 0 to ", session.size() - 1);
    expect_error(report, bad, {"broadcast 'x': root -1 is not a rank", last},
                 [&] { broadcast(f, -1, named); });
    expect_error(report, bad, {text_of("root ", session.size(), " is not a rank"), last},
                 [&] { broadcast(f, session.size(), named); });
    expect_error(report, bad, {"rank 99 does not exist", last},
                 [&] { send(f, 99, {.session = &session}); });
    expect_error(report, bad, {"rank -1 does not exist", last},
                 [&] { recv(f, -1, {.session = &session}); });
}

void bad_shapes(Session& session, Report& report) {
    std::vector<float> f(6);
    const Options named{.name = "x", .session = &session};
    const AllreduceOptions summed{.name = "x", .session = &session};
    TensorView strided{std::span<float>(f).first(3)};
    strided.strides = {2};
    expect_error(report, bad, {"allreduce 'x'", "not contiguous", "[3]", "[2]"},
                 [&] { allreduce(strided, summed); });
    expect_error(report, bad, {"null data", "[4]"},
                 [&] { allreduce(TensorView(nullptr, DType::f32, {4}), summed); });
    expect_error(report, bad, {"negative extent", "[-1]"},
                 [&] { allreduce(TensorView(f.data(), DType::f32, {-1}), summed); });
    expect_error(report, bad, {"all_gather 'x'", "0-dimensional"},
                 [&] { return all_gather(f[0], named); });
    expect_error(report, bad, {"reduce_scatter 'x'", "0-dimensional"},
                 [&] { return reduce_scatter(f[0], summed); });
    expect_error(report, bad, {"all_to_all 'x'", "0-dimensional"},
                 [&] { return all_to_all(f[0], {}, named); });
    expect_error(report, bad, {"the group has no tensors"}, [&] { grouped_allreduce({}, summed); });
}

void bad_reductions(Session& session, Report& report) {
    std::vector<float> f(6);
    std::vector<int> n(6);
    bool flag = true;
    const AllreduceOptions summed{.name = "x", .session = &session};
    expect_error(report, bad, {"allreduce 'x'", "op sum is not defined on bool"},
                 [&] { allreduce(flag, summed); });
    expect_error(report, bad, {"op average is not defined on bool"}, [&] {
        return reduce_scatter(TensorView(&flag, DType::boolean, {1}),
                              {.name = "x", .op = ReduceOp::average, .session = &session});
    });
    expect_error(report, bad, {"scales must be 1 on i32", "prescale 0.5"},
                 [&] { allreduce(n, {.name = "x", .prescale = 0.5, .session = &session}); });
    expect_error(
        report, bad,
        {"allreduce 'x'", "op adasum is not defined on i32; it needs f16, bf16, f32 or f64"},
        [&] { allreduce(n, {.name = "x", .op = ReduceOp::adasum, .session = &session}); });
    expect_error(
        report, bad, {"reduce_scatter 'x'", "op adasum weighs whole tensors; use allreduce"}, [&] {
            return reduce_scatter(f, {.name = "x", .op = ReduceOp::adasum, .session = &session});
        });
}

void bad_splits(Session& session, Report& report) {
    std::vector<float> f(6);
    const Options named{.name = "x", .session = &session};
    const std::vector<std::int64_t> few(static_cast<std::size_t>(session.size()) + 1, 0);
    std::vector<std::int64_t> unequal(static_cast<std::size_t>(session.size()), 0),
        negative = unequal;
    unequal[0] = 5;
    negative[0] = -1;
    expect_error(report, bad,
                 {text_of(session.size() + 1, " splits for ", session.size(), " ranks")},
                 [&] { return all_to_all(f, few, named); });
    expect_error(report, bad, {"sum to 5, but dim 0 is 6"},
                 [&] { return all_to_all(f, unequal, named); });
    expect_error(report, bad, {"negative"}, [&] { return all_to_all(f, negative, named); });
    std::vector<float> indivisible(static_cast<std::size_t>(session.size()) + 1);
    if (session.size() > 1)
        expect_error(report, bad, {"cannot share equally; give splits"},
                     [&] { return all_to_all(indivisible, {}, named); });
}

void bad_names(Session& session, Report& report) {
    std::vector<float> f(6);
    expect_error(report, bad, {"allreduce '#1 allreduce'", "begin with #"},
                 [&] { allreduce(f, {.name = "#1 allreduce", .session = &session}); });
    expect_error(report, bad, {"broadcast '#'", "begin with #"},
                 [&] { broadcast(f, 0, {.name = "#", .session = &session}); });
    std::vector<NamedTensor> too_much;
    std::vector<float> numbers(600);
    for (auto& number : numbers)
        too_much.push_back({std::string(65'000, 'n') + std::to_string(too_much.size()), number});
    expect_error(report, bad, {"to describe; at most 33554432 are supported: make several groups"},
                 [&] { const Plan plan({too_much}, {.session = &session}); });
    expect_error(report, bad, {"name is 65537 bytes long"},
                 [&] { allreduce(f, {.name = std::string(65'537, 'n'), .session = &session}); });
}

}  // namespace

void bad_arguments(Session& session, Report& report) {
    if (session.rank() == session.size() - 1) {
        bad_ranks(session, report);
        bad_shapes(session, report);
        bad_reductions(session, report);
        bad_splits(session, report);
        bad_names(session, report);
    }
    std::vector<float> f(6);
    allreduce(f, {.name = "x", .session = &session});
    expect_usable(session, report);
}

void impossible_values(Session& session, Report& report) {
    const auto bad = ErrorCode::invalid_argument;
    std::vector<float> f(6);
    const auto reduce = [&](const TensorView& tensor) {
        allreduce(tensor, {.name = "x", .session = &session});
    };
    const std::int64_t huge = std::int64_t{1} << 32;
    // These shapes have 0 elements or 0 bytes, modulo 2^64.
    for (const Shape& shape : {Shape{huge, huge}, {huge << 30}, {0, huge, huge}})
        expect_error(report, bad, {"allreduce 'x'", "f32", "more bytes than can be counted"},
                     [&] { reduce(TensorView(f.data(), DType::f32, shape)); });
    expect_error(report, bad, {"the shape [2, 4] has 8 elements, but 6 were given"}, [&] {
        reduce(TensorView(f, {2, 4}));
    });
    std::vector<std::int64_t> splits(static_cast<std::size_t>(session.size()),
                                     std::numeric_limits<std::int64_t>::max());
    splits.back() = 8;  // of three ranks 6 in all, modulo 2^64
    if (session.size() > 2)
        expect_error(report, bad, {"sum to more than can be counted, but dim 0 is 6"},
                     [&] { return all_to_all(f, splits, {.name = "x", .session = &session}); });
    const TensorView no_dtype(f.data(), static_cast<DType>(99), {6}),
        no_kind(f.data(), DType::f32, {6}, {static_cast<DeviceKind>(9), 0});
    expect_error(report, bad, {"allreduce 'x'", "no dtype 99"}, [&] { reduce(no_dtype); });
    expect_error(report, bad, {"send", "no dtype 99"},
                 [&] { send(no_dtype, 0, {.session = &session}); });
    expect_error(report, bad, {"no device kind 9"}, [&] { reduce(no_kind); });
    expect_error(report, bad, {"no reduce op 99"}, [&] {
        allreduce(f, {.name = "x", .op = static_cast<ReduceOp>(99), .session = &session});
    });
    reduce(f);
    expect_usable(session, report);
}

void duplicate_names(Session& session, Report& report) {
    std::vector<float> first(3, 1), second(3, 1);
    std::uint8_t word = 0;
    Handle handle;
    if (session.rank() == 0 && session.size() > 1) {
        handle = allreduce_async(first, {.name = "twice", .session = &session});
        expect_error(report, ErrorCode::duplicate_name, {"'twice'", "still pending"},
                     [&] { allreduce(second, {.name = "twice", .session = &session}); });
        expect_error(report, ErrorCode::duplicate_name, {"'twice'"},
                     [&] { broadcast(second, 0, {.name = "twice", .session = &session}); });
        for (int rank = 1; rank < session.size(); ++rank)
            send(word, rank, {.tag = 5, .session = &session});
    } else {
        if (session.rank() > 0) recv(word, 0, {.tag = 5, .session = &session});
        handle = allreduce_async(first, {.name = "twice", .session = &session});
    }
    handle.wait();
    allreduce(second, {.name = "twice", .session = &session});
    report.expect(first == second && first[0] == static_cast<float>(session.size()), "both sums");
}

void long_names(Session& session, Report& report) {
    constexpr std::size_t longest_text = 1000;
    const auto expect_cut = [&](ErrorCode code, const std::string& word, const auto& act) {
        expect_error(report, code, {word}, act);
        const auto error = error_of(act);
        report.expect(error && std::string(error->what()).size() < longest_text,
                      text_of(word, ": a long text"));
    };
    std::vector<float> numbers(2);
    std::string name(199, 'n');
    for (int i = 0; i < 40'000; ++i) name += "\u00e9";  // of two bytes
    const auto begins = " '" + std::string(199, 'n') + "...' (";
    expect_cut(ErrorCode::invalid_argument, "allreduce" + begins + "80199 bytes): the name is",
               [&] { allreduce(numbers, {.name = name, .session = &session}); });
    name.resize(60'199);
    if (session.size() > 1) {
        numbers.resize(session.rank() == 0 ? 2 : 3);
        expect_cut(ErrorCode::mismatch,
                   "allreduce" + begins + "60199 bytes): shapes differ: [2] on",
                   [&] { allreduce(numbers, {.name = name, .session = &session}); });
    }
    expect_usable(session, report);
}

void mismatched_messages(Session& session, Report& report) {
    if (session.size() < 2 || session.rank() > 1) return expect_usable(session, report);
    std::vector<float> four(4, 2), five(5);
    std::vector<int> integers(4);
    const PointToPointOptions options{.tag = 3, .session = &session};
    const auto exchange = [&](const TensorView& out, const TensorView& in) {
        session.rank() == 0 ? send(out, 1, options) : recv(in, 0, options);
    };
    expect_error(report, ErrorCode::mismatch,
                 {"f32 [4] sent by rank 0", "f32 [5] expected by rank 1", "tag 3"},
                 [&] { exchange(four, five); });
    expect_error(report, ErrorCode::mismatch,
                 {"f32 [4] sent by rank 0", "i32 [4] expected by rank 1"},
                 [&] { exchange(four, integers); });
    std::vector<float> arrived(4);
    exchange(four, arrived);
    report.expect(session.rank() == 0 || arrived == four, "the next message");
    expect_usable(session, report);
}

}  // namespace guozhuang::test
