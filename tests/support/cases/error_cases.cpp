#include "support/cases/error_cases.hpp"

namespace guozhuang::test {
namespace {

constexpr auto invalid_call = ErrorCode::invalid_argument;

/// A call that fails with invalid_argument on its caller, and words of the text.
struct Refused {
    std::vector<std::string> words;
    std::function<void()> call;
};

void expect_refused(Report& report, const std::vector<Refused>& all) {
    for (const auto& [words, call] : all) expect_error(report, invalid_call, words, call);
}

std::vector<Refused> bad_calls(Session& session) {
    static std::vector<float> f(6);
    const AllreduceOptions summed{.name = "x", .session = &session};
    const auto reduce = [=](const TensorView& tensor) {
        return [=] { allreduce(tensor, summed); };
    };
    TensorView strided{std::span<float>(f).first(3)};
    strided.strides = {2};
    const std::vector<std::int64_t> few(static_cast<std::size_t>(session.size()) + 1, 0);
    return {
        {{"rank 99 does not exist", text_of("there are ranks 0 to ", session.size() - 1)},
         [&] { send(f, 99, {.session = &session}); }},
        {{"rank -1 does not exist"}, [&] { recv(f, -1, {.session = &session}); }},
        {{"allreduce 'x'", "not contiguous", "[3]", "[2]"}, reduce(strided)},
        {{"null data", "[4]"}, reduce(TensorView(nullptr, DType::f32, {4}))},
        {{text_of(session.size() + 1, " splits for ", session.size(), " ranks")},
         [&, few] { return all_to_all(f, few, {.name = "x", .session = &session}); }},
        {{"name is 65537 bytes long"},
         [&] { allreduce(f, {.name = std::string(65'537, 'n'), .session = &session}); }},
    };
}

void too_long_a_plan(Session& session, Report& report) {
    std::vector<NamedTensor> too_much;
    std::vector<float> numbers(600);
    for (auto& number : numbers)
        too_much.push_back({std::string(65'000, 'n') + std::to_string(too_much.size()), number});
    expect_error(report, invalid_call,
                 {"to describe; at most 33554432 are supported: make several groups"},
                 [&] { const Plan plan({too_much}, {.session = &session}); });
}

/// Errors that the caller alone can see are thrown at once, on it alone; then all ranks call
/// properly.
void bad_arguments(Session& session, Report& report) {
    if (session.rank() == session.size() - 1) {
        expect_refused(report, bad_calls(session));
        too_long_a_plan(session, report);
    }
    std::vector<float> f(6);
    allreduce(f, {.name = "x", .session = &session});
    expect_usable(session, report);
}

/// Numbers that would wrap, and enumerators that do not exist.
void impossible_values(Session& session, Report& report) {
    std::vector<float> f(6);
    const auto reduce = [&](const TensorView& tensor) {
        return [&, tensor] { allreduce(tensor, {.name = "x", .session = &session}); };
    };
    const std::int64_t huge = std::int64_t{1} << 32;
    const TensorView no_dtype(f.data(), static_cast<DType>(99), {6}),
        no_kind(f.data(), DType::f32, {6}, {static_cast<DeviceKind>(9), 0});
    const AllreduceOptions no_op{.name = "x", .op = static_cast<ReduceOp>(99), .session = &session};
    std::vector<Refused> all{
        {{"the shape [2, 4] has 8 elements, but 6 were given"},
         [&] {
             TensorView(f, {2, 4});
         }},
        {{"allreduce 'x'", "no dtype 99"}, reduce(no_dtype)},
        {{"send", "no dtype 99"}, [&] { send(no_dtype, 0, {.session = &session}); }},
        {{"no device kind 9"}, reduce(no_kind)},
        {{"no reduce op 99"}, [&] { allreduce(f, no_op); }}};
    // These shapes have 0 elements or 0 bytes, modulo 2^64.
    for (const Shape& shape : {Shape{huge, huge}, {huge << 30}, {0, huge, huge}})
        all.push_back({{"allreduce 'x'", "f32", "more bytes than can be counted"},
                       reduce(TensorView(f.data(), DType::f32, shape))});
    std::vector<std::int64_t> splits(static_cast<std::size_t>(session.size()),
                                     std::numeric_limits<std::int64_t>::max());
    splits.back() = 8;  // of three ranks 6 in all, modulo 2^64
    if (session.size() > 2)
        all.push_back({{"sum to more than can be counted, but dim 0 is 6"},
                       [&] { return all_to_all(f, splits, {.name = "x", .session = &session}); }});
    expect_refused(report, all);
    reduce(f)();
    expect_usable(session, report);
}

/// A group whose first tensor matches, and whose second does not.
void half_matched_group(Session& session, Report& report) {
    if (session.size() < 2) return;
    std::vector<float> first(4, 1);
    std::vector<float> second(session.rank() + 1 == session.size() ? 4 : 6);
    expect_error(report, ErrorCode::mismatch, {"allreduce 'group[1]': shapes differ: "}, [&] {
        grouped_allreduce(std::vector<TensorView>{first, second},
                          {.name = "group", .session = &session});
    });
    report.expect(first == std::vector<float>(4, 1), "a group that fails changes nothing");
}

/// Errors quote the beginning of a long name, and say how long it is.
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

/// The two sides of a message differ: both learn it, and the next message passes.
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

}  // namespace

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

const std::vector<RankCase> all_error_cases{bad_arguments, impossible_values, half_matched_group,
                                            long_names, mismatched_messages};

}  // namespace guozhuang::test
