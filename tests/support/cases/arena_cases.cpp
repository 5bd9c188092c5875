#include "support/cases/arena_cases.hpp"

namespace guozhuang::test {
namespace {

void all_reductions_in_an_arena(Session& session, Report& report) {
    GradientArena arena(64 << 20, &session);
    report.expect(arena.is_shared() == can_share(), "the arena is not what it should be");
    for (const auto dtype : all_dtypes)
        for (const auto op :
             {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product})
            if (is_defined(op, dtype))
                reduce_group(session, report, label_of("in place ", dtype, op, {}), &arena,
                             {.dtype = dtype, .shape = {}, .how = {.op = op}});
    reduce_group(session, report, "scaled", &arena,
                 {.dtype = DType::f32,
                  .shape = {},
                  .how = {.op = ReduceOp::average, .prescale = -0.5, .postscale = 3}});
}

/// In place a rank gives its sums to each other rank; where memory is private, its terms besides.
/// So less is counted of what is in place.
void in_place_is_seen(Session& session, Report& report) {
    constexpr std::size_t count = 200'000, bytes = count * sizeof(float);
    GradientArena arena(1 << 20, &session);
    std::pmr::vector<float> in_arena(count, &arena);
    std::vector<float> shared(count), elsewhere(count);
    const TensorView view(shared);
    const auto registration = share({&view, 1}, &session);
    const auto moved = [&](std::span<float> numbers) {
        const auto before = traffic(&session).bytes;
        allreduce(numbers, {.name = "counted", .session = &session});
        return traffic(&session).bytes - before;
    };
    const auto if_private = moved(elsewhere),
               least_difference = bytes / 2 / static_cast<std::size_t>(session.size());
    for (const auto numbers : {std::span<float>(in_arena), std::span<float>(shared)}) {
        const auto here = moved(numbers);
        if (can_share() && session.size() > 1)
            report.expect(here + least_difference <= if_private,
                          text_of(here, " bytes given, ", if_private, " where memory is private"));
    }
}

/// The bits do not depend on where the tensors lie.
void same_bits_anywhere(Session& session, Report& report) {
    GradientArena arena(32 << 20, &session);
    for (const auto dtype : {DType::f16, DType::bf16, DType::f32}) {
        const auto contents = contribution("bits", session.rank(), dtype, {many});
        Placed in_place(contents, &arena), staged(contents, nullptr);
        allreduce(in_place.view,
                  {.name = "in place", .op = ReduceOp::average, .session = &session});
        allreduce(staged.view, {.name = "staged", .op = ReduceOp::average, .session = &session});
        report.expect(in_place.now().bytes == staged.now().bytes,
                      text_of(name_of(dtype), ": other bits"));
    }
}

/// An arena may end on some ranks before others, and a new one begin.
void arenas_come_and_go(Session& session, Report& report) {
    for (int turn = 0; turn < 5; ++turn) {
        auto arena = std::make_unique<GradientArena>(4 << 20, &session);
        reduce_group(session, report, text_of("turn ", turn), arena.get());
        if ((session.rank() + turn) % 2 == 0) arena.reset();
        reduce_group(session, report, text_of("later in turn ", turn), arena.get());
    }
}

/// Some ranks have one of two arenas no more, and others use that one.
void arena_that_others_have_lost(Session& session, Report& report) {
    auto first = std::make_unique<GradientArena>(2 << 20, &session);
    GradientArena second(2 << 20, &session);
    const bool has_lost_it = session.rank() % 2 == 0;
    if (has_lost_it) first.reset();
    reduce_group(session, report, "one of two arenas", has_lost_it ? &second : first.get());
}

void full_arena(Session& session, Report& report) {
    GradientArena arena(1000, &session);
    std::pmr::vector<float> numbers(100, 1.0f, &arena);
    report.expect(reinterpret_cast<std::uintptr_t>(numbers.data()) % 64 == 0,
                  "not at a cache line");
    bool is_full = false;
    try {
        std::memset(arena.allocate(arena.bytes()), 0, arena.bytes());
    } catch (const std::bad_alloc&) {
        is_full = true;
    }
    report.expect(is_full, "room for more than there is");
    allreduce(numbers, {.session = &session});
    report.expect_equal(numbers.back(), static_cast<float>(session.size()), "the sum");
}

/// The other operations take tensors from an arena, too.
void other_operations_in_an_arena(Session& session, Report& report) {
    GradientArena arena(8 << 20, &session);
    Placed root(contribution("root", session.rank(), DType::f32, {many}), &arena);
    broadcast(root.view, session.size() - 1, {.session = &session});
    report.expect(
        root.now().bytes == contribution("root", session.size() - 1, DType::f32, {many}).bytes,
        "not what the root had");
    Placed rows(contribution("rows", session.rank(), DType::i32, {9, 3}), &arena);
    const auto scattered = reduce_scatter(rows.view, {.name = "rows", .session = &session});
    check_reduce_scattered(session, report, "rows", scattered,
                           {.dtype = DType::i32, .shape = {9, 3}, .how = {}});
}

void shared_in_place(Session& session, Report& report) {
    Buffer buffer(session, 400'000);
    const auto tensors = several(buffer);
    for (std::size_t i = 0; i < tensors.back().size(); ++i)
        tensors.back()[i] = static_cast<float>(i);
    const std::vector<TensorView> views(tensors.begin(), tensors.end());
    for (int turn = 0; turn < 3; ++turn) {
        const auto registration = share(views, &session);
        report.expect(registration.is_shared() == can_share(),
                      "the memory is not what it should be");
        if (turn == 0) report.expect(tensors.back()[29'999] == 29'999, "what was in it is lost");
        reduce_numbers(session, report, text_of("shared ", turn), tensors);
    }
    const float last = tensors.back()[29'999];
    reduce_numbers(session, report, "private again", tensors);
    report.expect(tensors.back()[29'999] == last, "another sum");
}

/// Tensors need not begin where their elements would.
void oddly_placed(Session& session, Report& report) {
    Buffer buffer(session, 400'000);
    for (const auto dtype : {DType::f16, DType::f32, DType::f64}) {
        auto contents = contribution("odd", session.rank(), dtype, {20'000});
        const auto memory = buffer.oddly(session, contents.bytes.size());
        std::ranges::copy(contents.bytes, memory.begin());
        const TensorView view(memory.data(), dtype, contents.shape);
        const auto registration = share({&view, 1}, &session);
        allreduce(view, {.name = "odd", .session = &session});
        std::ranges::copy(memory, contents.bytes.begin());
        check_allreduced(session, report, "odd", contents, {});
    }
}

/// Memory may be freed and used again once the registration has ended, whatever the others do.
void freed_and_used_again(Session& session, Report& report) {
    for (int turn = 0; turn < 5; ++turn) {
        Buffer buffer(session, 2 << 20);
        const std::vector<std::span<float>> tensors = {buffer.numbers(0, 400'000)};
        const std::vector<TensorView> views(tensors.begin(), tensors.end());
        auto registration = share(views, &session);
        reduce_numbers(session, report, text_of("turn ", turn), tensors);
        if ((session.rank() + turn) % 2 == 0) registration = {};
        reduce_numbers(session, report, text_of("later in turn ", turn), tensors);
    }
}

/// Some ranks have an arena, others share what they have, and one does neither.
void all_kinds_at_once(Session& session, Report& report) {
    GradientArena arena(1 << 20, &session);
    Buffer buffer(session, 1 << 20);
    const TensorView view(buffer.numbers(0, 200'000));
    const auto registration = share({&view, 1}, &session);
    std::pmr::vector<float> in_arena(200'000, &arena);
    std::vector<float> own(200'000);
    const std::span<float> kinds[] = {in_arena, buffer.numbers(0, 200'000), own};
    for (int turn = 0; turn < 3; ++turn) {
        reduce_numbers(session, report, text_of("different kinds ", turn),
                       {kinds[static_cast<std::size_t>((session.rank() + turn) % 3)]});
        reduce_numbers(session, report, text_of("one kind ", turn),
                       {kinds[static_cast<std::size_t>(turn)]});
    }
}

/// Memory that one rank cannot share is shared on none, and operations on it work.
void not_ordinary_memory(Session& session, Report& report) {
    constexpr std::size_t count = 20'000;
    void* const memory = mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    std::vector<float> ordinary(count);
    const bool is_last = session.rank() + 1 == session.size();
    const std::span<float> numbers =
        is_last ? std::span(static_cast<float*>(memory), count) : ordinary;
    const TensorView view(numbers);
    const auto registration = share({&view, 1}, &session);
    report.expect(!registration.is_shared(), "what is shared with somebody else is shared");
    reduce_numbers(session, report, "not shared", {numbers});
    munmap(memory, count * sizeof(float));
    int little = 0;
    const TensorView too_small(little);
    const auto nothing = share({&too_small, 1}, &session);
    reduce_group(session, report, "too small", nullptr);
}

/// Three steps of an optimizer whose gradients are shared.
void optimizer_that_shares(Session& session, Report& report) {
    struct Nothing {
        void step() {}
    } nothing;
    std::vector<std::vector<float>> gradients = {
        std::vector<float>(100'000), std::vector<float>(10), std::vector<float>(70'000)};
    std::vector<Parameter> parameters;
    for (auto& gradient : gradients)
        parameters.push_back(
            {text_of("layer", parameters.size()), TensorView(gradient), TensorView(gradient)});
    DistributedOptimizer optimizer(nothing, parameters,
                                   {.session = &session, .memory = Memory::share});
    for (int step = 0; step < 3; ++step) {
        for (auto& gradient : gradients)
            std::ranges::fill(gradient, static_cast<float>(session.rank() + step));
        optimizer.step();
        const auto mean = static_cast<float>(session.size() - 1) / 2 + static_cast<float>(step);
        for (const auto& gradient : gradients)
            report.expect(
                std::ranges::all_of(gradient, [&](float number) { return number == mean; }),
                text_of("step ", step));
    }
}

/// A gradient of two parameters is summed once, wherever it lies and however often it is marked.
void tied_weights(Session& session, Report& report) {
    for (const auto memory : {Memory::as_is, Memory::share}) {
        Tied tied;
        NoOptimizer nothing;
        DistributedOptimizer optimizer(nothing, tied.parameters,
                                       options_of(session, "tied", memory));
        step_tied(session, report, tied, optimizer, {.name = "without hooks"});
        step_tied(session, report, tied, optimizer, {.name = "hooks", .hooks = true});
        step_tied(session, report, tied, optimizer,
                  {.name = "one of them marked", .hooks = true, .once = true});
    }
    std::vector<float> numbers(many, 1.0f);
    const TensorView views[] = {numbers, numbers};
    grouped_allreduce(views, {.session = &session});
    report.expect_equal(numbers.back(), static_cast<float>(session.size()),
                        "given twice in a group");
    std::ranges::fill(numbers, 1.0f);
    const auto registration = share(views, &session);
    report.expect(registration.is_shared() == can_share(), "given twice, it is not shared");
    reduce_numbers(session, report, "shared twice", {numbers});
}

/// Tied on the last rank alone: an error on all.
void tied_on_one_rank(Session& session, Report& report) {
    if (session.size() == 1) return;
    Tied tied(session.rank() + 1 == session.size());
    NoOptimizer nothing;
    DistributedOptimizer optimizer(nothing, tied.parameters,
                                   options_of(session, "tied", Memory::as_is));
    expect_error(
        report, ErrorCode::mismatch,
        {"tensors differ: " + sides(session, "'output'", "'output (the memory of embedding)'")},
        [&] { optimizer.step(); });
    expect_usable(session, report);
}

/// Tensors that overlap are refused by name before anything is sent. If ranks can share memory,
/// share() fails on all of them, though only one is at fault.
void overlapping_tensors(Session& session, Report& report) {
    std::vector<float> flat(10'000);
    const std::span<float> all(flat);
    const TensorView whole(flat), part(all.subspan(100, 50)),
        bits(flat.data(), DType::i32, {10'000});
    for (const auto& views :
         {std::vector{whole, part}, std::vector{part, whole}, std::vector{whole, bits}}) {
        expect_error(report, ErrorCode::invalid_argument, {"allreduce 'g': '[", "' overlap: "},
                     [&] { grouped_allreduce(views, {.name = "g", .session = &session}); });
        expect_error(
            report, ErrorCode::invalid_argument, {"plan 'p': '", "' and '", "' overlap: "}, [&] {
                Plan({{{"a", views[0]}}, {{"b", views[1]}}}, {.name = "p", .session = &session});
            });
    }
    const bool is_last = session.rank() + 1 == session.size();
    std::vector<NamedTensor> tensors = {{"flat", whole}};
    if (is_last) tensors.push_back({"view", part});
    if (can_share() || is_last)
        expect_error(report, ErrorCode::invalid_argument,
                     {"share: 'flat' and 'view' overlap: 40000 bytes of f32 at "},
                     [&] { static_cast<void>(share(tensors, &session)); });
    else
        static_cast<void>(share(tensors, &session));
    expect_usable(session, report);
}

/// Memory that one registration holds is not shared by a second one.
void shared_again(Session& session, Report& report) {
    Buffer buffer(session, 400'000);
    const auto tensors = std::vector{buffer.numbers(0, 50'000), buffer.numbers(50'000, 40'000)};
    const TensorView first(tensors[0]), both(buffer.numbers(0, 90'000));
    auto registration = share({&first, 1}, &session);
    const auto again = share({&first, 1}, &session);
    report.expect(registration.is_shared() == can_share() && !again.is_shared(),
                  "the second holds what the first has");
    reduce_numbers(session, report, "twice", tensors);
    if (can_share())
        expect_error(report, ErrorCode::invalid_argument,
                     {"'tensor 0'", "lie in an arena or another registration"}, [&] {
                         static_cast<void>(share({&both, 1}, &session));
                     });
    registration = {};
    report.expect(!again.is_shared(), "the second holds what it never had");
    reduce_numbers(session, report, "private again", tensors);
}

/// Any number of tensors whose ends are private; and a few beside others that are wholly so. Fewer
/// bytes move than if all were staged.
void many_in_place(Session& session, Report& report) {
    constexpr std::size_t count = 400, length = 5001, gap = 4;
    Buffer buffer(session, count * (length + gap) * sizeof(float));
    std::vector<std::span<float>> tensors;
    for (std::size_t i = 0; i < count; ++i)
        tensors.push_back(buffer.numbers(i * (length + gap), length));
    const std::vector<TensorView> views(tensors.begin(), tensors.end());
    // Bytes that a rank writes if all is staged: the others' blocks, and its own sums to each rank.
    const auto others = static_cast<std::size_t>(session.size() - 1);
    const auto all_bytes = 2 * others * count * length * sizeof(float) / (others + 1);
    const auto is_less = [&](std::uint64_t bytes) {
        return !can_share() || session.size() == 1 || bytes < all_bytes * 95 / 100;
    };
    auto registration = share(views, &session);
    const auto moved =
        bytes_moved(session, [&] { reduce_numbers(session, report, "many", tensors); });
    report.expect(is_less(moved), text_of("many: ", moved, " bytes of ", all_bytes, " are moved"));
    registration = {};
    registration = share(std::span(views).first(count / 3), &session);
    const auto by_each =
        bytes_moved(session, [&] { reduce_numbers(session, report, "some of many", tensors); });
    report.expect(!can_share() || session.size() == 1 || by_each < all_bytes,
                  text_of("some: ", by_each, " bytes are moved"));
}

}  // namespace

bool may_share() {
    const char* const setting = std::getenv("GUOZHUANG_SHARED_MEMORY");
    return setting == nullptr || std::string(setting) != "0";
}

bool can_share() {
    return may_share() && Session::current().cross_size() == 1;
}

void reduce_group(Session& session, Report& report, const std::string& name, GradientArena* arena,
                  const Reduce& reduce) {
    std::vector<Placed> placed;
    std::vector<TensorView> views;
    for (const std::int64_t count :
         {std::int64_t{3}, many, std::int64_t{0}, std::int64_t{1}, many / 3})
        placed.emplace_back(
            contribution(text_of(name, "/", placed.size()), session.rank(), reduce.dtype, {count}),
            arena);
    for (const auto& each : placed) views.push_back(each.view);
    grouped_allreduce(views, options_of(session, name, reduce.how));
    for (std::size_t i = 0; i < placed.size(); ++i) {
        check_allreduced(session, report, text_of(name, "/", i), placed[i].now(), reduce.how);
        report.same_everywhere(name, placed[i].now().bytes);
    }
}

void unequal_arenas(Session& session, Report& report) {
    const auto rank = static_cast<std::size_t>(session.rank());
    GradientArena first((8 << 20) + rank * 123, &session), second(16 << 20, &session);
    std::memset(first.allocate(1 + rank * 1000), 1, 1 + rank * 1000);
    reduce_group(session, report, "at other places", &first);
    reduce_group(session, report, "in other arenas", rank % 2 == 0 ? &first : &second);
    reduce_group(session, report, "private on odd ranks", rank % 2 == 0 ? &first : nullptr);
    reduce_group(session, report, "private on all but the last",
                 session.rank() + 1 == session.size() ? &second : nullptr);
    reduce_group(session, report, "in place again", &second);
}

void reduce_numbers(Session& session, Report& report, const std::string& name,
                    const std::vector<std::span<float>>& tensors) {
    const int size = session.size();
    std::vector<TensorView> views(tensors.begin(), tensors.end());
    for (const auto& tensor : tensors)
        for (std::size_t i = 0; i < tensor.size(); ++i)
            tensor[i] = static_cast<float>(session.rank() + 1) + static_cast<float>(i % 1000);
    grouped_allreduce(views, {.name = name, .session = &session});
    const int sum_of_ranks = size * (size + 1) / 2;
    for (const auto& tensor : tensors)
        for (std::size_t i = 0; i < tensor.size(); ++i)
            if (tensor[i] != static_cast<float>(sum_of_ranks) +
                                 static_cast<float>(size) * static_cast<float>(i % 1000))
                return report.expect(false, text_of(name, ": element ", i, " of ", tensor.size(),
                                                    " is ", tensor[i]));
}

std::vector<std::span<float>> several(Buffer& buffer) {
    return {buffer.numbers(0, 40'000), buffer.numbers(40'000, 3), buffer.numbers(40'003, 0),
            buffer.numbers(40'003, 2'000), buffer.numbers(43'000, 30'000)};
}

void children_apart(Session& session, Report& report) {
    GradientArena arena(1 << 20, &session);
    Buffer buffer(session, 1 << 20);
    const auto shared = buffer.numbers(0, 200'000);
    const TensorView view(shared);
    const auto registration = share({&view, 1}, &session);
    std::pmr::vector<float> in_arena(200'000, &arena);
    for (const auto& numbers : {shared, std::span<float>(in_arena)}) {
        std::ranges::fill(numbers, 7.0f);
        const auto child = fork();
        if (child == 0) {  // how it ends leaves the arena alone
            const bool as_parent =
                std::ranges::all_of(numbers, [](float number) { return number == 7; });
            std::ranges::fill(numbers, 8.0f);
            _exit(as_parent ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        report.expect(status == 0, "the child sees something else");
        report.expect(std::ranges::all_of(numbers, [](float number) { return number == 7; }),
                      "the child has written to its parent's memory");
        reduce_numbers(session, report, "after the child", {numbers});
    }
}

OptimizerOptions options_of(Session& session, const std::string& name, Memory memory) {
    return {.name = name,
            .op = ReduceOp::sum,
            .bundle_bytes = 100'000,
            .first_bundle_bytes = 1000,
            .session = &session,
            .memory = memory};
}

void measured_sharing(Session& session, Report& report) {
    Tied tied;
    NoOptimizer nothing;
    DistributedOptimizer optimizer(nothing, tied.parameters,
                                   options_of(session, "measured", Memory::as_is));
    optimizer.step();
    const auto bytes_of_step = bytes_moved(session, [&] { optimizer.step(); });
    std::ranges::fill(tied.shared, 3.0F);
    SharingTimes times;
    const auto moved = bytes_moved(session, [&] { times = optimizer.measure_sharing(); });
    report.expect(tied.shared == std::vector<float>(tied.shared.size(), 3), "a gradient is left");

    const bool is_possible = can_share() && session.size() > 1;
    report.expect_equal(times.possible, is_possible, "whether memory can be shared");
    report.expect(times.private_s > 0 && times.shared_s > 0, "both take time");
    report.expect(is_possible || times.private_s == times.shared_s, "nothing to compare");
    report.same_everywhere("times", text_of(std::hexfloat, times.private_s, times.shared_s));
    // In place a rank writes its sums alone, half of what it writes to stage them.
    const auto expected = (10 + (is_possible ? 4.5 : 9)) * static_cast<double>(bytes_of_step);
    report.expect(std::abs(static_cast<double>(moved) - expected) <= 0.05 * expected,
                  text_of("it moves ", moved, " bytes instead of ", expected));

    const auto shared = share(std::vector<TensorView>{tied.shared, tied.other}, &session);
    step_tied(session, report, tied, optimizer, {.name = "a step after it", .hooks = true});
    if (session.rank() == 0) optimizer.on_gradient()("layer");
    expect_error(report, ErrorCode::invalid_argument,
                 {"DistributedOptimizer 'measured': measure_sharing() comes between steps",
                  session.rank() == 0 ? "has begun" : "has begun on another rank"},
                 [&] { static_cast<void>(optimizer.measure_sharing()); });
    if (session.rank() != 0) optimizer.on_gradient()("layer");
    optimizer.discard("it is over");
    optimizer.measure_sharing();
}

const std::vector<RankCase> all_arena_cases{all_reductions_in_an_arena,
                                            unequal_arenas,
                                            same_bits_anywhere,
                                            arenas_come_and_go,
                                            full_arena,
                                            in_place_is_seen,
                                            other_operations_in_an_arena,
                                            shared_in_place,
                                            freed_and_used_again,
                                            all_kinds_at_once,
                                            not_ordinary_memory,
                                            optimizer_that_shares,
                                            measured_sharing,
                                            oddly_placed,
                                            arena_that_others_have_lost,
                                            tied_weights,
                                            tied_on_one_rank,
                                            overlapping_tensors,
                                            shared_again,
                                            many_in_place};

}  // namespace guozhuang::test
