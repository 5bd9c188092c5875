#pragma once

#include <span>
#include <string_view>

#include "peers/peer.hpp"

namespace guozhuang::perf {

/// gz-perf, under this name and with these peers to choose from: all of main(). Returns the exit
/// code.
int run_program(std::string_view name, std::span<const PeerKind> peers, int argc, char** argv);

}  // namespace guozhuang::perf
