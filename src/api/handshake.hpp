#pragma once

#include "base/config.hpp"
#include "wire/transport.hpp"

namespace guozhuang {

/// What ranks tell each other before anything else: version and settings. Collective. Throws Error(configuration) on every rank, with the table
/// of what differs, if they cannot work together; Error(timeout) naming the ranks that did not come. Where rank 0's setting wins over another
/// rank's, rank 0 warns.
void shake_hands(wire::Transport& transport, const base::Settings& settings);

}  // namespace guozhuang
