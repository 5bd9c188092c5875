#pragma once

#include <cstddef>
#include <guozhuang/types.hpp>
#include <span>

namespace guozhuang::device {

/// One of the copies of Driver::copy_all().
struct Copy {
    std::span<std::byte> to;
    std::span<const std::byte> from;
    DType dtype = DType::u8;  ///< of elements that are finished
};

}  // namespace guozhuang::device
