#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/config.hpp"
#include "wire/transport.hpp"

namespace guozhuang {

/// The ranks' first exchange: version and settings, why a rank's own settings cannot be accepted
/// (`refusal`, usually empty), and warnings for its user; rank 0 logs each warning once for all
/// ranks that have it. Returns this rank's settings, with rank 0's values where rank 0 decides;
/// rank 0 warns if that changes any. Collective. Throws Error(configuration) on every rank, with
/// the table of differences if they cannot work together, or with a rank's refusal; Error(timeout)
/// naming the ranks that did not come; Error(wire).
base::Config run_handshake(wire::Transport& transport, const base::Config& config,
                           std::string_view refusal, const std::vector<std::string>& warnings);

}  // namespace guozhuang
