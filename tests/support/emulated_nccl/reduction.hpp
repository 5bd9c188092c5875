#pragma once

#include <cstddef>
#include <nccl.h>
#include <span>

namespace guozhuang::emulated_nccl {

std::size_t size_of(ncclDataType_t type);

/// into = into op from, element by element.
void combine(ncclRedOp_t op, ncclDataType_t type, std::span<std::byte> into,
             std::span<const std::byte> from);

}  // namespace guozhuang::emulated_nccl
