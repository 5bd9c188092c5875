#include "support/cases/random_operations.hpp"

namespace guozhuang::test {

RankCase random_operations(std::uint64_t seed, int rounds) {
    return [=](Session& session, Report& report) {
        RandomOperations(session, seed).run(report, rounds);
    };
}

}  // namespace guozhuang::test
