#pragma once

#include <string>

namespace guozhuang::device {

/// A pointer, or why there is none.
template <class Pointer>
struct OrReason {
    Pointer value = nullptr;
    std::string reason = {};  ///< empty if there is one
};

}  // namespace guozhuang::device
