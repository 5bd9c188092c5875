#include "base/tune_file.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <guozhuang/error.hpp>

#include "base/config.hpp"

namespace guozhuang::base {
namespace {

constexpr std::array<std::string_view, 3> tuned = {
    "GUOZHUANG_FUSION_BYTES", "GUOZHUANG_SEGMENT_BYTES", "GUOZHUANG_SMALL_BYTES"};
constexpr std::size_t most_bytes = std::size_t{64} << 10;

[[noreturn]] void refuse(const std::string& why) {
    throw Error(ErrorCode::configuration, why);
}

}  // namespace

Tuning parse_tuning(std::string_view text, std::string_view file) {
    Tuning tuning;
    for (int number = 1; !text.empty(); ++number) {
        const auto line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        if (line.empty() || line.starts_with('#')) continue;
        const auto equals = line.find('=');
        const auto name = line.substr(0, equals);
        if (equals == line.npos || std::ranges::find(tuned, name) == tuned.end())
            refuse(fmt::format("{}, line {}: '{}' is no value for one of {}", file, number,
                               for_display(line), fmt::join(tuned, ", ")));
        if (!tuning.try_emplace(std::string(name), line.substr(equals + 1)).second)
            refuse(fmt::format("{}, line {}: a second value for {}", file, number, name));
    }
    return tuning;
}

Tuning read_tuning(const std::string& file) {
    std::ifstream in(file);
    std::string text(most_bytes, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!in.eof() || in.bad())
        refuse(fmt::format("GUOZHUANG_TUNE_FILE='{}' cannot be read, or is longer than {} bytes",
                           for_display(file), most_bytes));
    text.resize(static_cast<std::size_t>(in.gcount()));
    return parse_tuning(text, file);
}

}  // namespace guozhuang::base
