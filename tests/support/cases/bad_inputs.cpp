#include "support/cases/bad_inputs.hpp"

namespace guozhuang::test {

std::string list(const std::vector<int>& ranks) {
    auto text = text_of(ranks.size() == 1 ? "rank " : "ranks ", ranks.front());
    for (std::size_t i = 1; i < ranks.size(); ++i) text += text_of(",", ranks[i]);
    return text;
}

RankCase bad_inputs(std::uint64_t seed, int inputs, Tally& tally) {
    return [=, &tally](Session& session, Report& report) {
        const auto own = BadInputs(session, report, seed).run(inputs);
        std::vector<int> faults{own.hangs, own.wrong_results, own.unnamed_culprits};
        allreduce(faults, {.session = &session});
        if (session.rank() != 0) return;
        tally.inputs += own.inputs;
        tally.hangs += faults[0];
        tally.wrong_results += faults[1];
        tally.unnamed_culprits += faults[2];
    };
}

}  // namespace guozhuang::test
