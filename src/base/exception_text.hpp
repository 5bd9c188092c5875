#pragma once

#include <exception>
#include <string>

namespace guozhuang::base {

/// "std::runtime_error: no such file data.bin"; of our own errors the message alone.
std::string describe(const std::exception_ptr& exception);

}  // namespace guozhuang::base
