#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>

namespace guozhuang::base {

/// A JSON array in a file of its own that is whole at any time: whoever is killed leaves valid JSON.
///
/// The kernel carries a write out page by page, and a process may be killed between two pages. So elements are written into *room*, blanks that
/// are there already between the last element and the closing bracket, and no write crosses a page. When the room is used up, blanks are added
/// behind the bracket, and it moves there: it is missing for the moment between two system calls, some ten times in the life of a file. (What is
/// cut in that moment is an array that is not closed, which the trace format allows and gz-timeline mends.) Not thread-safe.
class TraceFile {
public:
    /// Makes the file, for its owner only. There must be none of that name, nor a symbolic link. Throws std::system_error.
    explicit TraceFile(const std::string& path);
    /// Writes to an empty file, whose descriptor it closes in the end. Throws std::system_error.
    explicit TraceFile(int descriptor);
    /// Takes away the room that is left.
    ~TraceFile();
    TraceFile(const TraceFile&) = delete;
    TraceFile& operator=(const TraceFile&) = delete;

    /// Adds elements, one a line and each shorter than a page. Throws std::system_error if there is no space: what was there is still whole, and may
    /// have been joined by some of these.
    void append(std::string_view elements);

private:
    void put(std::string_view text);  ///< behind the elements, within one page
    void grow();
    void write(std::string_view text, off_t at) const;
    void shrink() const;

    int descriptor_;
    off_t end_ = 1;  ///< of the elements
    off_t bracket_;  ///< where the closing one is
};

}  // namespace guozhuang::base
