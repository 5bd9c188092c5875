#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/config.hpp"
#include "wire/transport.hpp"

namespace guozhuang {

/// What ranks tell each other before anything else: version and settings, why a rank's own cannot
/// be accepted (`refusal`, mostly empty), and what each has found that its user should know
/// (`warnings`), which rank 0 logs once for all that found it. Returns this rank's settings with
/// what rank 0 decides as rank 0 has it; where that changes any, rank 0 warns. Collective. Throws
/// Error(configuration) on every rank, with the table of what differs, if they cannot work
/// together, or with what any of them has refused; Error(timeout) naming the ranks that did not
/// come; Error(wire).
base::Config run_handshake(wire::Transport& transport, const base::Config& config,
                           std::string_view refusal, const std::vector<std::string>& warnings);

}  // namespace guozhuang
