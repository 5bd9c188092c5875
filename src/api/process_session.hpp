#pragma once

#include <atomic>
#include <guozhuang/session.hpp>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "runtime/runtime.hpp"

namespace guozhuang::api {

/// The process's default session: the first Session or init() opens it, further ones share it, and
/// the last closes it.
struct Process {
    base::Mutex starting;  ///< held while the first session is opened, which may take long
    base::Mutex mutex;     ///< held for moments
    std::shared_ptr<Runtime> runtime GUOZHUANG_GUARDED_BY(mutex);
    /// The runtime of the session, also while it closes.
    std::weak_ptr<Runtime> latest GUOZHUANG_GUARDED_BY(mutex);
    int users GUOZHUANG_GUARDED_BY(mutex) = 0;
    /// Whether an exception has left a session of the process, or an error has ended its job.
    std::atomic<bool> has_failed{false};
    /// Never destroyed, since threads may keep a reference to it.
    std::unique_ptr<Session> view GUOZHUANG_GUARDED_BY(mutex);
    /// The result of Session::current(): the view while there are users.
    std::atomic<Session*> current{nullptr};
    /// Calls of init() open these, and calls of shutdown() close them.
    std::vector<Session> initialised GUOZHUANG_GUARDED_BY(mutex);
};

Process& process();

/// The runtime of the process's first session. It is closed if it is still open when the process
/// exits or finalises MPI. Collective.
std::shared_ptr<Runtime> open_runtime(const SessionOptions& options);

}  // namespace guozhuang::api
