#pragma once

#include <filesystem>
#include <ranges>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace guozhuang::device {

/// The files of that name in the packages of the Pythons in these folders, which are separated as
/// in PATH: the libraries that pip has installed there, the loader does not know.
inline std::vector<std::string> files_in_packages(const std::string& name,
                                                  std::string_view programs) {
    namespace fs = std::filesystem;
    std::vector<std::string> found;
    for (const auto part : std::views::split(programs, ':')) {
        const fs::path bin(part.begin(), part.end());
        std::error_code missing;
        if (bin.empty() || !fs::exists(bin / "python3", missing)) continue;
        for (const auto& each : fs::directory_iterator(bin.parent_path() / "lib", missing)) {
            if (!each.path().filename().string().starts_with("python3")) continue;
            for (const auto* const packages : {"site-packages", "dist-packages"})
                if (const auto file = each.path() / packages / name; fs::exists(file, missing))
                    found.push_back(file);
        }
    }
    return found;
}

}  // namespace guozhuang::device
