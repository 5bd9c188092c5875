#pragma once

#include <guozhuang/export.hpp>

/// The version of these headers. version() returns that of the library.
#define GUOZHUANG_VERSION_MAJOR 0
#define GUOZHUANG_VERSION_MINOR 1
#define GUOZHUANG_VERSION_PATCH 0
#define GUOZHUANG_VERSION_STRING "0.1.0"

namespace guozhuang {

/// Version of the loaded library, e.g. "0.1.0"; GUOZHUANG_VERSION_STRING is that of the headers.
/// Any thread, any time.
GUOZHUANG_API const char* version() noexcept;

}  // namespace guozhuang
