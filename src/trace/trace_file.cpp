#include "trace/trace_file.hpp"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

namespace guozhuang::trace {
namespace {

int make(const std::string& path) {
    const int descriptor =
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (descriptor < 0) throw std::system_error(errno, std::generic_category(), path);
    return descriptor;
}

}  // namespace

TraceFile::TraceFile(const std::string& path) : TraceFile(make(path)) {}

TraceFile::TraceFile(int descriptor) try : descriptor_(descriptor) {
    write("[\n");
} catch (const std::system_error&) {
    close(descriptor);
}

TraceFile::~TraceFile() {
    try {
        write("\n]\n");
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
        // The array then stays open, as after a kill.
    }
    close(descriptor_);
}

void TraceFile::append(std::string_view elements) {
    if (elements.empty()) return;
    write(std::string(empty_ ? "" : ",\n").append(elements));
    empty_ = false;
}

void TraceFile::write(std::string_view text) {
    for (auto rest = text; !rest.empty();) {
        const auto written = pwrite(descriptor_, rest.data(), rest.size(),
                                    end_ + static_cast<off_t>(text.size() - rest.size()));
        if (written >= 0) {
            rest.remove_prefix(static_cast<std::size_t>(written));
        } else if (const int reason = errno; reason != EINTR) {
            static_cast<void>(ftruncate(descriptor_, end_) == 0);
            throw std::system_error(reason, std::generic_category(), "write");
        }
    }
    end_ += static_cast<off_t>(text.size());
}

}  // namespace guozhuang::trace
