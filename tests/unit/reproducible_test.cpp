// Sums that are the same bit for bit, whatever travels with them and however they travel.
#include <array>
#include <chrono>
#include <cstring>
#include <guozhuang/guozhuang.hpp>
#include <optional>
#include <random>
#include <thread>

#include "collectives/algorithms.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/sanitizer.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Sums of three ranks that contribute three times 1e8, 1 and -1e8. They are the same on all ranks.
/// In f32 1e8 is so big that adding 1 changes nothing.
std::vector<float> sums_of_big_and_small() {
    std::vector<float> sums[3];
    run_ranks(3, [&](Session& session) {
        const float of_rank[] = {1e8f, 1, -1e8f};
        const auto rank = static_cast<std::size_t>(session.rank());
        std::vector<float> numbers(3, of_rank[rank]);
        allreduce(numbers);
        sums[rank] = numbers;
    });
    CHECK(sums[0] == sums[1]);
    CHECK(sums[0] == sums[2]);
    return sums[0];
}

}  // namespace

TEST_CASE("three ranks by hand: a ring's order shows, a reproducible one is always the tree's") {
    {
        const Environment ring("GUOZHUANG_ALGORITHM", "ring");
        // Element b is in block b: rank b+1 first, rank b last. Only (-1e8 + 1e8) + 1 keeps the 1.
        CHECK(sums_of_big_and_small() == std::vector<float>{0, 1, 0});
    }
    const Environment reproducible("GUOZHUANG_REPRODUCIBLE", "1");
    for (const auto& row : selection::algorithms) {
        if (!row.by_name || row.order != selection::OrderClass::tree) continue;
        CAPTURE(row.name);
        const Environment forced("GUOZHUANG_ALGORITHM", std::string(row.name));
        CHECK(sums_of_big_and_small() == std::vector<float>{0, 0, 0});  // (1e8 + 1) - 1e8
    }
}

namespace {

// The sweeps below: tensors of four dtypes and five sizes, averaged one by one, at once, as a group
// or by a plan. The bits that one way leaves are compared with those of another.

/// Sizes on both sides of what counts as small.
const std::vector<Reduce> tensors = [] {
    std::vector<Reduce> all;
    for (const auto dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
        for (const std::int64_t count : {1, 7, 1000, 4099, 50'001})
            all.push_back({dtype, {count}, {ReduceOp::average}});
    return all;
}();

/// The contributions of a rank to them, made once: that takes longer than the sums.
const std::vector<Tensor>& contributions_of(int rank) {
    static const auto all_ranks = [] {
        std::array<std::vector<Tensor>, 7> all;
        for (std::size_t of = 0; of < all.size(); ++of)
            for (const auto& [dtype, shape, how] : tensors)
                all[of].push_back(contribution(label_of("", dtype, how.op, shape),
                                               static_cast<int>(of), dtype, shape));
        return all;
    }();
    return all_ranks.at(static_cast<std::size_t>(rank));
}

enum class Way { single, at_once, group, plan };
enum class Where { private_memory, arena, shared };

/// Makes a rank late, each time and on each rank by another time.
void dawdle(int rank) {
    thread_local std::mt19937 random(seed() + static_cast<unsigned>(rank));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
}

/// Everything that rank 0 holds after the tensors were averaged, or added up otherwise, that way,
/// in memory of that kind.
std::vector<std::byte> averages(int ranks, Way way, ReduceOp op = ReduceOp::average,
                                Where where = Where::private_memory, bool late = false) {
    std::vector<std::byte> all;
    run_ranks(ranks, [&](Session& session) {
        auto own = contributions_of(session.rank());
        std::vector<TensorView> views;
        std::vector<NamedTensor> named;
        std::optional<GradientArena> arena;
        if (where == Where::arena) arena.emplace(std::size_t{4} << 20, &session);
        for (auto& tensor : own) {
            auto& view = views.emplace_back(tensor.view());
            if (arena) {
                view.data = arena->allocate(view.bytes());
                std::memcpy(view.data, tensor.bytes.data(), view.bytes());
            }
            named.push_back({text_of("tensor ", views.size()), view});
        }
        std::optional<SharedMemory> shared;
        if (where == Where::shared) shared.emplace(share(views, &session));
        const AllreduceOptions options{.op = op};
        std::vector<Handle> handles;
        if (way == Way::group) grouped_allreduce(views, options);
        if (way == Way::plan) {
            Plan plan({{named.begin(), named.begin() + 9}, {named.begin() + 9, named.end()}},
                      {.op = op});
            if (late) dawdle(session.rank());
            plan.ready(1);
            plan.ready(0);
            plan.wait();
        }
        for (const auto& view : views) {
            if (late) dawdle(session.rank());
            if (way == Way::at_once) handles.push_back(allreduce_async(view, options));
            if (way == Way::single) allreduce(view, options);
        }
        for (const auto& handle : handles) handle.wait();
        if (session.rank() > 0) return;
        for (const auto& view : views)
            all.insert(all.end(), view.memory().begin(), view.memory().end());
    });
    return all;
}

}  // namespace

TEST_CASE("fusion, groups and plans do not change a bit") {
    for (const int ranks : rank_counts({2, 3, 5})) {
        const auto expected = averages(ranks, Way::single);
        for (const auto* const fusion_bytes : {"0", "10K", "1M"}) {
            const Environment environment("GUOZHUANG_FUSION_BYTES", fusion_bytes);
            for (const auto way : {Way::at_once, Way::group, Way::plan})
                CHECK((averages(ranks, way) == expected));
        }
    }
}

TEST_CASE("adasum weighs each tensor by itself, whatever travels with it") {
    for (const int ranks : rank_counts({2, 3, 5})) {
        const auto expected = averages(ranks, Way::single, ReduceOp::adasum);
        CHECK((expected != averages(ranks, Way::single)));
        for (const auto way : {Way::at_once, Way::group, Way::plan})
            CHECK((averages(ranks, way, ReduceOp::adasum) == expected));
    }
}

TEST_CASE("reproducible sums do not hang on algorithm, segments or what is small") {
    const Environment reproducible("GUOZHUANG_REPRODUCIBLE", "1");
    for (const int ranks : rank_counts({2, 3, 4, 7})) {
        const auto expected = averages(ranks, Way::single);
        for (const auto& row : selection::algorithms) {
            if (!row.by_name || selection::contradictory(row.algorithm, true)) continue;
            const Environment forced("GUOZHUANG_ALGORITHM", std::string(row.name));
            INFO(ranks << " ranks, " << row.name);
            for (const auto way : {Way::single, Way::at_once, Way::group, Way::plan})
                CHECK((averages(ranks, way) == expected));
            const Environment segments("GUOZHUANG_SEGMENT_BYTES", "1K");
            CHECK((averages(ranks, Way::group) == expected));
            const Environment small("GUOZHUANG_SMALL_BYTES", "0");
            CHECK((averages(ranks, Way::at_once) == expected));
        }
    }
}

TEST_CASE("reproducible sums do not hang on the kind of memory or on who comes late") {
    const Environment reproducible("GUOZHUANG_REPRODUCIBLE", "1");
    for (const int ranks : rank_counts({2, 3, 4, 5, 6, 7})) {
        const auto expected = averages(ranks, Way::single);
        for (const auto where : {Where::private_memory, Where::arena, Where::shared}) {
            for (const auto way : {Way::at_once, Way::group, Way::plan}) {
                INFO(ranks << " ranks, memory " << static_cast<int>(where) << ", way "
                           << static_cast<int>(way));
                CHECK((averages(ranks, way, ReduceOp::average, where, true) == expected));
                const Environment segments("GUOZHUANG_SEGMENT_BYTES", "1K");
                CHECK((averages(ranks, way, ReduceOp::average, where) == expected));
            }
        }
    }
}

// Otherwise the case above would show nothing.
TEST_CASE("without asking for it, the ring adds in another order") {
    const auto ring = [] {
        const Environment forced("GUOZHUANG_ALGORITHM", "ring");
        return averages(5, Way::single);
    }();
    const Environment forced("GUOZHUANG_ALGORITHM", "direct");
    CHECK((averages(5, Way::single) != ring));
}

TEST_CASE("reduce_scatter gives the bits of a reproducible allreduce") {
    const Environment reproducible("GUOZHUANG_REPRODUCIBLE", "1");
    CHECK(problems_among(5, [](Session& session, Report& report) {
              auto tensor = contribution("both", session.rank(), DType::f32, {20'003});
              const auto share = reduce_scatter(tensor.view());
              allreduce(tensor.view());
              const auto [first, count] = share_of(20'003, session.rank(), session.size());
              report.expect(rows_of(tensor, first, count).bytes == share.bytes, "the bits differ");
          }) == "");
}

TEST_CASE("every algorithm can be forced") {
    for (const auto& row : selection::algorithms) {
        if (!row.by_name || row.order != selection::OrderClass::tree) continue;
        INFO(row.name);
        const Environment forced("GUOZHUANG_ALGORITHM", std::string(row.name));
        for (const int ranks : rank_counts({1, 2, 3, 8}))
            for (const auto& tensor : tensors)
                CHECK(problems_among(ranks, [&](Session& session, Report& report) {
                          start_allreduce(session, "forced", tensor)(report);
                      }) == "");
    }
}
