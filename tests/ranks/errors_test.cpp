// Bad input, on ranks that are processes.
#include "support/cases/error_cases.hpp"

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("shapes that differ fail on every rank, and the next sum is right") {
    const int rank = Session::current().rank(), ranks = Session::current().size();
    std::vector<float> numbers(rank == 0 ? 2 : 3, 1);
    const auto error = error_of([&] { allreduce(numbers, {.name = "w"}); });
    CHECK(error.has_value() == (ranks > 1));
    if (error) {
        CHECK(error->code() == ErrorCode::mismatch);
        CHECK(std::string(error->what())
                  .find("allreduce 'w': shapes differ: [2] on rank 0; [3] on rank") !=
              std::string::npos);
    }
    int one = 1;
    allreduce(one);
    CHECK(one == ranks);
}

// The cases of error_cases.hpp: tensors, options, groups, arguments, names and messages that are
// wrong on some ranks or on all. Each checks the error's code and words, then an allreduce.
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
