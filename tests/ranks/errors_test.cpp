// Bad input, on ranks that are processes.
#include "support/cases/error_cases.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("bad input is a named error on the ranks concerned, and the next operation succeeds") {
    for (const auto& body : all_error_cases) CHECK(problems_here(body) == "");
}

TEST_CASE("every rank is told the same of a mismatch") {
    CHECK(problems_here([](Session& session, Report& report) {
              std::vector<float> numbers(static_cast<std::size_t>(session.rank()));
              const auto error = error_of([&] { allreduce(numbers, {.name = "all different"}); });
              report.expect(error.has_value() == (session.size() > 1), "an error");
              report.same_everywhere("text", error ? error->what() : "none");
              expect_usable(session, report);
          }) == "");
}
