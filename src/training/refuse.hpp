#pragma once

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <string>
#include <string_view>

#include "base/error_text.hpp"

namespace guozhuang {

/// How errors name a part of training: "LocalSgd 'encoder'", or its kind alone.
inline std::string label_of(std::string_view kind, const std::string& name) {
    return name.empty() ? std::string(kind) : fmt::format("{} {}", kind, base::quote(name));
}

/// Throws the error for a mistake of an optimizer's caller.
[[noreturn]] inline void refuse(const std::string& optimizer, const std::string& problem,
                                const std::string& tensor = {},
                                const std::string& operation = "step") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {}", label_of("DistributedOptimizer", optimizer), problem),
                {.tensor = tensor, .operation = operation});
}

}  // namespace guozhuang
