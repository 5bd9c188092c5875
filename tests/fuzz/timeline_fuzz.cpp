// The file of one rank, as gz-timeline reads it, beside a good one of another rank.
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>
#include <limits>

#include "fuzz/fuzz.hpp"
#include "tools/timeline_summary.hpp"

namespace guozhuang::fuzz {

namespace {

/// A file without a place in any directory.
class File {
public:
    const std::string& path() const { return path_; }
    void write(Input text) const {
        const bool written =
            ftruncate(file_, 0) == 0 &&
            pwrite(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
        require(written, "a file in memory can be written");
    }

private:
    int file_ = memfd_create("trace", MFD_CLOEXEC);
    std::string path_ = fmt::format("/proc/self/fd/{}", file_);
};

std::string head(int rank, int ranks = 2, std::int64_t realtime_us = 1'700'000'000'000'000) {
    return fmt::format(R"({{"name":"guozhuang","ph":"M","pid":{0},"args":{{"version":"0.1.0",)"
                       R"("rank":{0},"ranks":{1},"host":"h","boot":"b",)"
                       R"("monotonic_us":{2},"realtime_us":{3}}}}})",
                       rank, ranks, 1000 + rank, realtime_us);
}

std::string recorded(int rank) {
    return "[\n" + head(rank) +
           ",\n"
           R"({"ph":"B","pid":0,"tid":16,"ts":5000,"name":"loss","args":{"set":"world"}},)"
           "\n"
           R"({"ph":"B","pid":0,"tid":16,"ts":5001.5,"name":"negotiate"},)"
           "\n"
           R"({"ph":"E","pid":0,"tid":16,"ts":5010},)"
           "\n"
           R"({"ph":"E","pid":0,"tid":16,"ts":5020},)"
           "\n"
           R"({"ph":"X","pid":0,"tid":1e99,"ts":5011,"dur":7,"name":"bundle"})"
           "\n]\n";
}

void read_both(const std::string& path) {
    static const auto other = [] {
        const File file;
        file.write(bytes_of(recorded(1)));
        return timeline::read(file.path());
    }();
    std::vector traces{timeline::read(path), other};
    timeline::align(traces);
    timeline::remarks(traces);
    timeline::summary(traces);
}

}  // namespace

void decode(Input input) try {
    static const File file;
    file.write(input);
    read_both(file.path());
} catch (const timeline::BadInput&) {         // the two for which gz-timeline
} catch (const nlohmann::json::exception&) {  // has words
}

std::vector<Seed> seeds() {
    const auto whole = recorded(0);
    const auto of = [](const std::string& only) { return seed_of("[\n" + only + "\n]\n"); };
    return {seed_of(whole),
            seed_of(whole.substr(0, whole.size() - 20)),
            of(head(1)),
            of(head(0, std::numeric_limits<int>::max())),
            of(head(0, 2, std::numeric_limits<std::int64_t>::min())),
            of(head(0) + ",\n   ")};
}

}  // namespace guozhuang::fuzz
