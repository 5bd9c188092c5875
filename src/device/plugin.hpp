#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "device/device.hpp"
#include "device/or_reason.hpp"

namespace guozhuang::device {

/// The plugin's answer: a driver that lives as long as the process, or why there is none (a text in
/// the plugin's memory). Library and plugin agree on this even if their builds differ.
struct CudaPlugin {
    Driver* driver;
    const char* reason;
};
/// The plugin's only exported function, extern "C" guozhuang_cuda_plugin. It refuses a build id
/// that is not its own.
using CudaPluginEntry = CudaPlugin(const char* build_id) noexcept;

/// Every reason why there is no CUDA driver starts with one of these.
inline constexpr std::string_view cuda_reasons[] = {
    "built without CUDA",  // the library itself: there is no plugin to look for
    "plugin not found",    // no libguozhuang_cuda.so beside the library
    "plugin not loaded",   // it is not a plugin, or a library that it needs is missing
    "build mismatch",      // library and plugin come from different builds
    "no NVIDIA driver",   "NVIDIA driver too old", "no CUDA device",
    "CUDA failed",  // any other error from CUDA
};

/// The CUDA driver of this process, from libguozhuang_cuda.so beside the library (from no other
/// directory, whatever the environment). The first call loads it and looks for devices; later calls
/// return the same. Thread-safe, does not throw.
const OrReason<Driver*>& cuda_driver();

/// Tries the plugin at an absolute path. A plugin stays loaded.
OrReason<Driver*> load_cuda_plugin(const std::filesystem::path& path);

/// For tests only: unless null, it makes the driver of each session, and the plugin is not used.
/// Read when a session first uses a CUDA tensor.
using MakeDriver = std::shared_ptr<Driver>();
GUOZHUANG_API extern std::atomic<MakeDriver*> cuda_substitute;

/// Whether a plugin belongs to this build of the library.
bool built_with_cuda() noexcept;
/// Identifies the build that library and plugin must share: version, compiler, and the headers that
/// both include.
const char* build_id() noexcept;

}  // namespace guozhuang::device
