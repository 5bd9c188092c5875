#pragma once

#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <string>

/// Where the time of a rank goes, as a trace that ui.perfetto.dev and chrome://tracing open:
/// docs/timeline.md. GUOZHUANG_TIMELINE records a whole run; these record a part of one, on the
/// ranks that call them. Local; any thread. `session` null means Session::current(). They throw
/// Error(not_initialised).
namespace guozhuang {

/// Records this rank's timeline from now on, to the new file rank2.json (for rank 2) in that
/// directory, which is made if need be. False, and a warning in the log, if there is such a file,
/// if none can be made there, or if one is being recorded already: training goes on without it.
GUOZHUANG_API bool start_timeline(const std::string& directory, Session* session = nullptr);

/// Ends the recording; the file is then complete. The end of the session does it, too. Harmless if
/// nothing is recorded.
GUOZHUANG_API void stop_timeline(Session* session = nullptr);

}  // namespace guozhuang
