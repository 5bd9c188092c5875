#include "device/find_nccl.hpp"

#include <filesystem>
#include <ranges>
#include <system_error>

#include "base/config.hpp"

namespace guozhuang::device {

OrReason<Nccl*> find_nccl(Driver& driver, const std::string& wanted) {
    auto found = driver.nccl(wanted);
    if (found.value != nullptr || wanted != "auto") return found;
    for (const auto& file :
         files_in_packages("nvidia/nccl/lib/libnccl.so.2", base::environment("PATH").value_or("")))
        if (auto packaged = driver.nccl(file); packaged.value != nullptr) return packaged;
    return found;
}

std::vector<std::string> files_in_packages(const std::string& name, std::string_view programs) {
    namespace fs = std::filesystem;
    std::vector<std::string> found;
    std::error_code missing;
    for (const auto part : std::views::split(programs, ':')) {
        const fs::path bin(part.begin(), part.end());
        if (bin.empty() || !fs::exists(bin / "python3", missing)) continue;
        fs::directory_iterator each((bin / "../lib").lexically_normal(), missing);
        for (; each != fs::directory_iterator(); each.increment(missing)) {
            if (!each->path().filename().string().starts_with("python3")) continue;
            for (const auto* const packages : {"site-packages", "dist-packages"})
                if (const auto file = each->path() / packages / name; fs::exists(file, missing))
                    found.push_back(file);
        }
    }
    return found;
}

}  // namespace guozhuang::device
