#pragma once

#include <cstdint>
#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <string>
#include <vector>

/// Information about the library, the machine and this job.
namespace guozhuang {

/// Data that this rank has sent to other ranks since the session began: messages, and bytes that it
/// wrote to memory for them to read. Control messages do not count.
struct Traffic {
    std::uint64_t bytes = 0;
    std::uint64_t messages = 0;
};

/// This rank's traffic so far. Local; any thread. `session` null means Session::current().
GUOZHUANG_API Traffic traffic(Session* session = nullptr);

/// One line of information about the library, the job and the machine, for users and bug reports.
struct InfoItem {
    /// "build", "mpi", "topology", "devices" or "configuration". The items come section by section,
    /// in this order.
    std::string section;
    std::string key;    ///< unique within the section
    std::string value;  ///< for a device that cannot be used: "unusable: " and why
};

/// Collective: the ranks find out which path the world's CUDA tensors take, or which rank cannot
/// use CUDA, and why; info() then reports it. The first operation with such tensors does the same,
/// and may wait until the device is idle; after this call it does not. Each rank tries the device
/// that its tensors have been on, or else the device numbered by its local rank, and the world's
/// tensors must then be there. Throws what an operation throws. `session` null means
/// Session::current().
GUOZHUANG_API void try_devices(Session* session = nullptr);

/// Returns what this rank knows; the configuration is the one in effect. Local; any thread. The
/// first call in a process looks for CUDA devices, unless GUOZHUANG_CUDA is off: that may take a
/// second. The path of CUDA tensors is known once all ranks have tried it. `session` null means
/// Session::current().
GUOZHUANG_API std::vector<InfoItem> info(Session* session = nullptr);

}  // namespace guozhuang
