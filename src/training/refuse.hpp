#pragma once

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <string>

#include "base/error_text.hpp"

namespace guozhuang {

/// Throws the error for a mistake of an optimizer's caller.
[[noreturn]] inline void refuse(const std::string& optimizer, const std::string& problem,
                                const std::string& tensor = {},
                                const std::string& operation = "step") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("DistributedOptimizer{}: {}",
                            optimizer.empty() ? "" : " " + base::quote(optimizer), problem),
                {.tensor = tensor, .operation = operation});
}

}  // namespace guozhuang
