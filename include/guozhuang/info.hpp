#pragma once

#include <cstdint>
#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <string>
#include <vector>

/// What the library can tell about itself.
namespace guozhuang {

/// What this rank has handed to its wire since the session began, payload and control alike; what
/// it keeps for itself does not count.
struct Traffic {
    std::uint64_t bytes = 0;
    std::uint64_t messages = 0;
};

/// This rank's traffic so far. Local; any thread. `session` null means Session::current().
GUOZHUANG_API Traffic traffic(Session* session = nullptr);

/// One line of what the library tells about itself, its job and its machine, for people and for bug
/// reports.
struct InfoItem {
    /// "build", "mpi", "topology", "devices" or "configuration"; the items of each section lie
    /// together, in this order of sections.
    std::string section;
    std::string key;    ///< unique within the section
    std::string value;  ///< of a device that cannot be used: "unusable: " and why
};

/// As this rank sees it; the configuration is the one in effect. Local; any thread. The first call
/// in a process looks for CUDA devices, unless GUOZHUANG_CUDA is off: that may take a second.
/// `session` null means Session::current().
GUOZHUANG_API std::vector<InfoItem> info(Session* session = nullptr);

}  // namespace guozhuang
