#include "device/plugin.hpp"

#include <dlfcn.h>
#include <system_error>

namespace guozhuang::device {
namespace {

/// dlerror() describes the calling thread's last failure.
std::string not_loaded() {
    return std::string("plugin not loaded: ") + dlerror();
}

/// The directory of the file from which this code was loaded.
std::filesystem::path own_directory() {
    Dl_info info{};
    std::error_code failed;
    if (!dladdr(reinterpret_cast<const void*>(&cuda_driver), &info) || !info.dli_fname) return {};
    return std::filesystem::canonical(info.dli_fname, failed).parent_path();
}

OrReason<Driver*> look_for_cuda() {
    if (!built_with_cuda()) return {.reason = std::string(cuda_reasons[0])};
    return load_cuda_plugin(own_directory() / "libguozhuang_cuda.so");
}

}  // namespace

const OrReason<Driver*>& cuda_driver() {
    // One for the process, not for a Runtime: a plugin is never unloaded, and CUDA is one per
    // process.
    static const OrReason<Driver*> answer = look_for_cuda();
    return answer;
}

OrReason<Driver*> load_cuda_plugin(const std::filesystem::path& path) {
    std::error_code failed;
    if (!path.is_absolute() || !std::filesystem::exists(path, failed))
        return {.reason = "plugin not found: " + path.string()};
    void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!plugin) return {.reason = not_loaded()};
    const auto entry = reinterpret_cast<CudaPluginEntry*>(dlsym(plugin, "guozhuang_cuda_plugin"));
    if (!entry) return {.reason = not_loaded()};
    const auto [driver, reason] = entry(build_id());
    return {.value = driver, .reason = driver ? "" : reason};
}

std::atomic<MakeDriver*> cuda_substitute{nullptr};

bool built_with_cuda() noexcept {
    return GUOZHUANG_WITH_CUDA;
}

const char* build_id() noexcept {
    return GUOZHUANG_BUILD_ID;
}

}  // namespace guozhuang::device
