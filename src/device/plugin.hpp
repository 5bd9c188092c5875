#pragma once

#include <filesystem>
#include <string>

#include "device/device.hpp"

namespace guozhuang::device {

/// What the plugin answers: a driver that lives as long as the process, or why there is none (text
/// of the plugin's). The one thing that library and plugin of different builds agree on.
struct CudaPlugin {
    Driver* driver;
    const char* reason;
};
/// The plugin's only exported function, extern "C" guozhuang_cuda_plugin. It refuses a build id
/// that is not its own.
using CudaPluginEntry = CudaPlugin(const char* build_id) noexcept;

struct DriverOrReason {
    Driver* driver = nullptr;  ///< null: unusable, see reason
    std::string reason;        ///< starts with one of `cuda_reasons`; empty if there is a driver
};

/// How the reasons for an unusable CUDA start.
inline constexpr std::string_view cuda_reasons[] = {
    "built without CUDA",  // the library itself: there is no plugin to look for
    "plugin not found",    // no libguozhuang_cuda.so beside the library
    "plugin not loaded",   // it is no such plugin, or a library it needs is missing
    "build mismatch",      // library and plugin come from different builds
    "no NVIDIA driver",   "NVIDIA driver too old", "no CUDA device",
    "CUDA failed",  // anything else that CUDA says
};

/// The CUDA driver of this process, from libguozhuang_cuda.so beside the library (no other place,
/// no environment variable). The first call loads it and looks for devices; the answer stays.
/// Thread-safe, does not throw.
const DriverOrReason& cuda_driver();

/// One look at the plugin at an absolute path. A plugin once loaded stays loaded.
DriverOrReason load_cuda_plugin(const std::filesystem::path& path);

/// Whether a plugin belongs to this build of the library.
bool built_with_cuda() noexcept;
/// Names everything that library and plugin must have in common: version, compiler, and the headers
/// between them.
const char* build_id() noexcept;

}  // namespace guozhuang::device
