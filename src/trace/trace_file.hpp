#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>

namespace guozhuang::trace {

/// A JSON array in a file, written as it grows. The closing bracket is written last. If the process
/// is killed, the bracket is missing and the last element may be cut; the trace format allows that,
/// and gz-timeline reads it. Not thread-safe.
class TraceFile {
public:
    /// Creates the file, for its owner only. Throws std::system_error, also if there is a file or a
    /// symbolic link of that name.
    explicit TraceFile(const std::string& path);
    /// Writes to an empty file, and closes its descriptor at the end. Throws std::system_error.
    explicit TraceFile(int descriptor);
    /// Closes the array, if there is space for the bracket.
    ~TraceFile();
    TraceFile(const TraceFile&) = delete;
    TraceFile& operator=(const TraceFile&) = delete;

    /// Adds elements, separated by commas. Throws std::system_error if there is no space; the file
    /// is then as it was before.
    void append(std::string_view elements);

private:
    void write(std::string_view text);  ///< all of it, or nothing

    int descriptor_;
    off_t end_ = 0;      ///< of the written part
    bool empty_ = true;  ///< no element yet
};

}  // namespace guozhuang::trace
