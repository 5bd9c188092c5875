#pragma once

#include "collectives/policy.hpp"
#include "protocol/fields.hpp"

namespace guozhuang::protocol {

/// As execute entries of the log carry it.
template <>
inline constexpr auto fields_of<selection::Policy> =
    std::tuple{Field{&selection::Policy::forced},      Field{&selection::Policy::reproducible},
               Field{&selection::Policy::staging},     Field{&selection::Policy::hierarchy},
               Field{&selection::Policy::small_bytes}, Field{&selection::Policy::segment_bytes}};
static_assert(lists_every_member<selection::Policy>());

}  // namespace guozhuang::protocol
