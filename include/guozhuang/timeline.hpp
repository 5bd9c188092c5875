#pragma once

#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <string>

/// Records where the time of a rank goes, as a trace that ui.perfetto.dev and chrome://tracing open
/// (docs/timeline.md). GUOZHUANG_TIMELINE records a whole run; these functions record a part of
/// one, on the ranks that call them. Local; any thread. `session` null means Session::current().
/// They throw Error(not_initialised).
namespace guozhuang {

/// Starts to record this rank's timeline to rank2.json (for rank 2), a new file in that directory,
/// which is created if necessary. Returns false, and logs a warning, if the file exists or cannot
/// be created, or if a timeline is being recorded already.
GUOZHUANG_API bool start_timeline(const std::string& directory, Session* session = nullptr);

/// Ends the recording; the file is then complete. The end of the session does so too. Does nothing
/// if nothing is recorded.
GUOZHUANG_API void stop_timeline(Session* session = nullptr);

}  // namespace guozhuang
