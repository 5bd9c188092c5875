#pragma once

#include <guozhuang/session.hpp>

namespace host_check {

/// gz-info --check: compares what the ranks report, measures the link of each pair of hosts, and
/// names what is odd (odd_hosts.hpp). Rank 0 prints, as text or as one JSON object. Collective.
/// Returns 0 if nothing is odd, otherwise 1; the same on all ranks.
int run(guozhuang::Session& session, bool json);

}  // namespace host_check
