// Every public call runs out of memory, at every allocation of its thread in turn, and the program
// goes on as docs/errors.md says that it may. Then every later result is right, or the job has
// ended on all ranks with a text that names the memory.
#include <algorithm>
#include <array>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "public_calls.hpp"
#include "scarce_memory.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/report.hpp"
#include "support/runner/sanitizer.hpp"

namespace guozhuang::test {
namespace {

constexpr int ranks = ranks_of_calls;
constexpr int never = std::numeric_limits<int>::max();

/// How it ended for one rank.
struct Ending {
    bool struck = false;                 ///< some memory was lacking
    bool closes = false;                 ///< as of the call
    std::optional<std::string> failure;  ///< the first error but a lack of memory: the job is over
};

/// Later calls of a program, without a name, and one with.
void go_on(Session& session, Report& report) {
    const auto own = static_cast<float>(session.rank() + 1);
    std::vector<float> numbers(3);
    for (int i = 1; i <= 2; ++i) {
        numbers.assign(3, static_cast<float>(i) * own);
        allreduce(numbers, {.session = &session});
        report.expect(numbers == std::vector<float>(3, static_cast<float>(3 * i)), "a later sum");
    }
    numbers.assign(3, own);
    broadcast(numbers, 1, {.session = &session});
    report.expect(numbers == std::vector<float>(3, 2), "a later broadcast");
    numbers.assign(1, own);
    const auto all = all_gather(numbers, {.session = &session}).as<float>();
    report.expect(all == std::vector<float>{1, 2}, "a later all_gather");
    allreduce(numbers, {.name = "a name that no string keeps in itself", .session = &session});
    report.expect(numbers == std::vector<float>{3}, "a later sum by name");
    barrier({.session = &session});
}

/// Tries the step again when it has run out of memory.
void persist(const std::function<void()>& step) {
    try {
        return step();
    } catch (const std::bad_alloc&) {
        Scarcity::lift();
    }
    step();
}

/// `lack` makes memory scarce, when all ranks have begun.
template <class MakeScarce>
Ending live(Session& session, Report& report, const PublicCall& public_call,
            const MakeScarce& make_scarce) {
    Ending ending;
    try {
        const auto call = public_call.prepare(session);
        ending.closes = call.closes;
        barrier();
        const auto scarcity = make_scarce();
        for (const auto& step : call.steps) persist(step);
        Scarcity::lift();
        call.check(report);
        if (!call.closes) go_on(session, report);
        session.close();
    } catch (const Error& error) {
        ending.failure = error.what();
    } catch (const std::exception& error) {
        ending.failure = text_of("unexpected: ", error.what());
    }
    ending.struck = Scarcity::has_struck();
    if (ending.failure) session.leave(*ending.failure);
    return ending;
}

/// Says what is wrong with the end of a job in which these ranks lacked memory; else empty.
std::string problem_of(std::span<const Ending> endings) {
    const bool is_over =
        std::ranges::any_of(endings, [](const auto& each) { return each.failure.has_value(); });
    if (!is_over) return {};
    if (std::ranges::none_of(endings, &Ending::struck))
        return text_of(
            "failed although no memory lacked: ", endings[0].failure.value_or("(rank 0 did not)"),
            " / ", endings[1].failure.value_or("(rank 1 did not)"));
    for (std::size_t rank = 0; rank < endings.size(); ++rank) {
        const auto& ending = endings[rank];
        if (!ending.failure && !ending.closes) return text_of("rank ", rank, " was told nothing");
        if (ending.failure && ending.failure->find("memory") == std::string::npos)
            return text_of("rank ", rank, " was told: ", *ending.failure);
    }
    return {};
}

/// Who lacks memory in a job, and how much of it.
struct Shortage {
    int first_rank = ranks - 1, last_rank = ranks - 1;
    Lack lack = Lack::one;
};

/// One job, in which the allocation of that number fails. False if no rank made so many.
bool survives(const PublicCall& call, const Shortage& shortage, int number, std::string& problem) {
    std::array<Ending, ranks> endings;
    problem = problems_among(ranks, [&](Session& session, Report& report) {
        const int rank = session.rank();  // it may be closed afterwards
        const bool lacks = rank >= shortage.first_rank && rank <= shortage.last_rank;
        endings[static_cast<std::size_t>(rank)] = live(
            session, report, call, [&] { return Scarcity(lacks ? number : never, shortage.lack); });
    });
    problem += problem_of(endings);
    return std::ranges::any_of(endings, &Ending::struck);
}

/// The same for allocations on the library's threads.
bool survives_in_coordinators(int number, std::string& problem) {
    std::array<Ending, ranks> endings;
    const CoordinatorScarcity scarcity(number);
    problem = problems_among(ranks, [&](Session& session, Report& report) {
        const auto rank = static_cast<std::size_t>(session.rank());
        endings[rank] = live(session, report, {"", idling}, [] { return Scarcity(never); });
    });
    endings[0].struck = scarcity.has_struck();
    problem += problem_of(endings);
    return scarcity.has_struck();
}

/// Every allocation of a call up to the 60th, then fewer and fewer. Under a sanitizer every third
/// one: calls have most of their allocations in common, and begin at different ones.
std::string problem_without_memory(const PublicCall& call, const Shortage& shortage) {
    constexpr int step = under_sanitizer ? 3 : 1;
    const auto position = &call - public_calls().data();
    std::string problem;
    int untouched = 0;
    for (int number = static_cast<int>(position % step); untouched < 3;
         number += number < 60 ? step : number / 20) {
        untouched = survives(call, shortage, number, problem) ? 0 : untouched + 1;
        if (!problem.empty()) return text_of("allocation ", number, ": ", problem);
    }
    return {};
}

}  // namespace

TEST_CASE("a public call runs out of memory anywhere: the program goes on or all ranks are told") {
    const Environment limit("GUOZHUANG_STALL_ERROR_S", "60");
    const LogCapture silent;
    for (const auto& call : public_calls()) {
        CAPTURE(call.name);
        CHECK(problem_without_memory(call, {}) == "");
    }
}

TEST_CASE("a public call runs out of memory on any rank, or on all, once or for good", "[.slow]") {
    const Environment limit("GUOZHUANG_STALL_ERROR_S", "60");
    const LogCapture silent;
    for (const auto& call : public_calls()) {
        for (const auto& [first, last] :
             {std::pair(0, 0), {0, ranks - 1}, {ranks - 1, ranks - 1}}) {
            for (const auto lack : {Lack::one, Lack::all_from_then_on}) {
                if (first == ranks - 1 && lack == Lack::one) continue;  // the case above
                CAPTURE(call.name, first, last, lack == Lack::one);
                CHECK(problem_without_memory(call, {first, last, lack}) == "");
            }
        }
    }
}

TEST_CASE("the library's own threads run out of memory anywhere: all ranks are told") {
    const Environment limit("GUOZHUANG_STALL_ERROR_S", "60");
    const LogCapture silent;
    std::string problem;
    int number = 0;
    for (int untouched = 0; untouched < 3 && problem.empty(); ++number)
        untouched = survives_in_coordinators(number, problem) ? 0 : untouched + 1;
    INFO("allocation " << number - 1);
    CHECK(problem == "");
    CHECK(number > 3);  // some were lacking
}

}  // namespace guozhuang::test
