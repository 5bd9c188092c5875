#include "support/runner/report.hpp"

namespace guozhuang::test {

std::string difference(const std::vector<Report::Digest>& own,
                       const std::vector<std::uint64_t>& of_rank0) {
    if (own.size() != of_rank0.size()) return "compared another number of results than rank 0";
    for (std::size_t i = 0; i < own.size(); ++i)
        if (own[i].hash != of_rank0[i]) return own[i].label + ": the bits differ from rank 0's";
    return {};
}

std::vector<std::uint64_t> hashes_of(const Report& report) {
    std::vector<std::uint64_t> hashes;
    for (const auto& digest : report.digests()) hashes.push_back(digest.hash);
    return hashes;
}

std::string problems_among(int ranks, const RankCase& body, const RankOptions& options) {
    std::vector<Report> reports(static_cast<std::size_t>(ranks));
    run_ranks(
        ranks,
        [&](Session& session) { body(session, reports[static_cast<std::size_t>(session.rank())]); },
        options);
    std::string problems;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        for (const auto& problem : reports[rank].problems())
            problems += text_of("rank ", rank, " of ", ranks, ": ", problem, "\n");
        const auto unlike = difference(reports[rank].digests(), hashes_of(reports[0]));
        if (!unlike.empty()) problems += text_of("rank ", rank, " of ", ranks, ": ", unlike, "\n");
    }
    return problems;
}

}  // namespace guozhuang::test
