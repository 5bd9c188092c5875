#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <guozhuang/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error_text.hpp"

namespace guozhuang::wire {

/// Why no rank shares the memory: the same on all of them.
struct SharingFailure {
    int rank = 0;                 ///< the first that refused or, if none did, the first that failed
    bool is_refusal = false;      ///< it threw Error(invalid_argument)
    std::string cause;            ///< what it threw; a long text is cut
    std::exception_ptr own = {};  ///< what this rank itself threw, if anything
};

/// Makes ranks share memory. Collective, with the same result on all ranks. `offer()` makes the
/// memory that this rank shares, and returns what the others need to attach to it, as plain bytes.
/// When all ranks have done so, `attach(offers)` maps the memory of the others; offers are ordered
/// by rank. Both may throw. `gather(value)` returns the values of all ranks, by rank, sent as plain
/// bytes; T{} for a rank that takes no part. Exceptions of gather() go to the caller.
///
/// Empty if all ranks have done both; then nobody needs a descriptor of the memory any more.
/// Otherwise every rank drops what it has made and mapped, since no other rank uses it.
template <class Gather, class Offer, class Attach>
std::optional<SharingFailure> share_together(Gather&& gather, Offer&& offer, Attach&& attach) {
    enum class Outcome : std::uint8_t { absent = 0, done = 1, failed = 2, refused = 3 };
    struct Report {
        std::invoke_result_t<Offer&> offer = {};
        Outcome outcome = Outcome::absent;
        std::array<char, 1023> cause{};
    };
    static_assert(std::is_trivially_copyable_v<Report>);
    Report own;
    std::vector<Report> reports;
    const auto failure_of = [&](auto&& step) -> std::optional<SharingFailure> {
        std::exception_ptr problem;
        const auto note_problem = [&](std::string_view what) {
            problem = std::current_exception();
            const bool refused = base::code_of(problem) == ErrorCode::invalid_argument;
            own.outcome = refused ? Outcome::refused : Outcome::failed;
            what.copy(own.cause.data(), own.cause.size() - 1);
        };
        try {
            step();
            own.outcome = Outcome::done;
        } catch (const std::exception& error) {  // the other ranks wait for the report in any case
            note_problem(error.what());
        } catch (...) {
            note_problem("an unknown exception");
        }
        reports = gather(own);
        for (const auto outcome : {Outcome::refused, Outcome::failed})
            if (const auto first = std::ranges::find(reports, outcome, &Report::outcome);
                first != reports.end())
                return SharingFailure{static_cast<int>(first - reports.begin()),
                                      outcome == Outcome::refused, first->cause.data(), problem};
        return std::nullopt;
    };
    if (auto failure = failure_of([&] { own.offer = offer(); })) return failure;
    std::vector<std::invoke_result_t<Offer&>> offers;
    for (const Report& report : reports) offers.push_back(report.offer);
    return failure_of([&] { attach(std::as_const(offers)); });
}

}  // namespace guozhuang::wire
