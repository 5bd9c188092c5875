#pragma once

#include <exception>
#include <guozhuang/operations.hpp>
#include <guozhuang/plan.hpp>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "support/runner/report.hpp"
#include "support/tensors/tensors.hpp"

/// Calls that fail with an Error on the ranks concerned, and leave the library usable.
namespace guozhuang::test {

/// The Error that the act throws, if it throws one.
template <class Act>
std::optional<Error> error_of(Act&& act) {
    try {
        act();
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

/// The act fails with this code and these words in the text.
template <class Act>
void expect_error(Report& report, ErrorCode code, const std::vector<std::string>& words,
                  Act&& act) {
    const auto error = error_of(act);
    const auto what = words.empty() ? std::string(name_of(code)) : words.front();
    if (!error) return report.expect(false, what + ": no error");
    report.expect(error->code() == code,
                  text_of(what, ": is ", name_of(error->code()), ": ", error->what()));
    for (const auto& word : words)
        report.expect(std::string(error->what()).find(word) != std::string::npos,
                      text_of("no '", word, "' in: ", error->what()));
}

void expect_usable(Session& session, Report& report);

/// "rank 0", "ranks 0,1,2": all but the last of the job.
std::string all_but_last(const Session& session);

/// The last rank submits something other than the others under one name. All ranks get the same
/// error, with this text, and can go on.
template <class Usual, class Other>
void expect_mismatch(Session& session, Report& report, const std::string& text, Usual&& usual,
                     Other&& other) {
    const int odd = session.size() - 1;
    const auto error = error_of(
        [&] { session.rank() == odd ? static_cast<void>(other()) : static_cast<void>(usual()); });
    report.expect(error.has_value(), text + ": no error");
    if (error) {
        report.expect(error->code() == ErrorCode::mismatch,
                      text_of("is ", name_of(error->code()), ": ", error->what()));
        report.expect_equal(std::string(error->what()), text, "text");
        report.expect(error->ranks() == std::vector<int>{odd}, text + ": names the odd rank");
    }
    expect_usable(session, report);
}

/// `a` on all ranks but the last, `b` there: as mismatches say it.
std::string sides(const Session& session, const std::string& a, const std::string& b);

/// Mismatches of every kind are those of bad_inputs.hpp, and the list of tests/conformance.
extern const std::vector<RankCase> all_error_cases;

}  // namespace guozhuang::test
