#include "base/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/process.hpp"

namespace guozhuang::base {
namespace {

constexpr std::string_view closing = "\n]\n";
constexpr std::string_view blank = "   ";
constexpr off_t page = 4096;  // or a part of one
constexpr off_t least_room = 16 * page, most_room = 2048 * page;

off_t left_in_page(off_t at) {
    return page - at % page;
}

off_t size_of(std::string_view text) {
    return static_cast<off_t>(text.size());
}

int make(const std::string& path) {
    const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (descriptor < 0) throw std::system_error(errno, std::generic_category(), path);
    return descriptor;
}

}  // namespace

TraceFile::TraceFile(const std::string& path) : TraceFile(make(path)) {}

TraceFile::TraceFile(int descriptor) try : descriptor_(descriptor), bracket_(page - size_of(closing)) {
    write(fmt::format("[{:{}}{}", "", bracket_ - 1, closing), 0);
} catch (const std::system_error&) {
    close(descriptor);
}

TraceFile::~TraceFile() {
    try {
        shrink();
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): then the room stays
    }
    close(descriptor_);
}

void TraceFile::append(std::string_view elements) {
    std::string text;
    while (!elements.empty()) {
        const auto line = elements.substr(0, elements.find('\n'));
        elements.remove_prefix(std::min(line.size() + 1, elements.size()));
        const std::string_view separator = end_ == 1 && text.empty() ? "\n" : ",\n";
        if (size_of(text) + size_of(separator) + size_of(line) > left_in_page(end_)) {
            put(std::exchange(text, {}));
            end_ += left_in_page(end_) % page;
        }
        text.append(separator).append(line);
    }
    put(text);
}

void TraceFile::put(std::string_view text) {
    while (end_ + size_of(text) > bracket_) grow();
    write(text, end_);
    end_ += size_of(text);
}

void TraceFile::grow() {
    const auto size = bracket_ + size_of(closing);
    const auto room = std::clamp(size, least_room, most_room);
    write(std::string(static_cast<std::size_t>(room), ' '), size);
    write(blank, bracket_);
    bracket_ += room;
    write(closing, bracket_);
}

void TraceFile::shrink() const {
    const auto at = left_in_page(end_) >= size_of(closing) ? end_ : end_ + left_in_page(end_);
    if (at > bracket_) return;  // there is none
    write(blank, bracket_);
    write(closing, at);
    static_cast<void>(ftruncate(descriptor_, at + size_of(closing)) == 0);
}

void TraceFile::write(std::string_view text, off_t at) const {
    const FileSizeErrors errors;
    while (!text.empty()) {
        const auto written = pwrite(descriptor_, text.data(), text.size(), at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) throw std::system_error(errno, std::generic_category(), "write");
        text.remove_prefix(static_cast<std::size_t>(written));
        at += written;
    }
}

}  // namespace guozhuang::base
