#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <guozhuang/tensor.hpp>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "protocol/codec.hpp"

/// Structs that travel. Each lists its fields once, as fields_of<Struct>; the functions that write,
/// read and compare it follow from the list.
namespace guozhuang::protocol {

/// A field of a struct, and its name in errors about a difference: "shapes". Empty: errors describe
/// the difference in other ways.
template <class Owner, class Value>
struct Field {
    Value Owner::*member;
    std::string_view plural = {};
};
template <class Owner, class Value>
Field(Value Owner::*) -> Field<Owner, Value>;
template <class Owner, class Value>
Field(Value Owner::*, std::string_view) -> Field<Owner, Value>;

/// A std::tuple of Field, in the order in which they travel.
template <class Owner>
inline constexpr auto fields_of = nullptr;

template <class Owner>
concept HasFields = !std::is_null_pointer_v<std::remove_const_t<decltype(fields_of<Owner>)>>;

template <HasFields Owner, class Visit>
constexpr void for_each_field(const Visit& visit) {
    std::apply([&](const auto&... field) { (visit(field), ...); }, fields_of<Owner>);
}

namespace detail {
/// Initialises a member of any type, to count the members.
struct Anything {
    template <class T>
    operator T() const;  // NOLINT(google-explicit-constructor): that is what it is for
};
template <class Owner, std::size_t... member>
consteval bool has_members(std::index_sequence<member...>) {
    return requires { Owner{(void(member), Anything{})...}; };
}
}  // namespace detail

/// Whether the list has as many fields as the struct has members.
template <HasFields Owner>
consteval bool lists_every_member() {
    constexpr auto listed = std::tuple_size_v<std::remove_const_t<decltype(fields_of<Owner>)>>;
    return detail::has_members<Owner>(std::make_index_sequence<listed>()) &&
           !detail::has_members<Owner>(std::make_index_sequence<listed + 1>());
}

/// How many elements a list may have.
template <class List>
inline constexpr std::size_t most_of = max_description_bytes;
template <>
inline constexpr std::size_t most_of<Shape> = max_dimensions;
template <>
inline constexpr std::size_t most_of<std::vector<std::int64_t>> = max_ranks;  // one for each rank

template <class Value>
void write(Writer& out, const Value& value) {
    if constexpr (HasFields<Value>)
        for_each_field<Value>([&](const auto& field) { write(out, value.*field.member); });
    else if constexpr (std::is_enum_v<Value>)
        out.enumerator(value);
    else if constexpr (std::is_same_v<Value, double>)
        out.real(value);
    else if constexpr (std::signed_integral<Value>)
        out.signed_number(value);
    else if constexpr (std::unsigned_integral<Value>)
        out.number(value);
    else if constexpr (std::is_same_v<Value, std::string>)
        out.string(value);
    else if constexpr (std::is_same_v<Value, std::vector<int>>)
        out.ranks(value);
    else {
        out.number(value.size());
        for (const auto& each : value) write(out, each);
    }
}

/// Throws Error(wire) on malformed bytes, as Reader does.
template <class Value>
void read(Reader& in, Value& value) {
    using Limits = std::numeric_limits<Value>;
    if constexpr (HasFields<Value>)
        for_each_field<Value>([&](const auto& field) { read(in, value.*field.member); });
    else if constexpr (std::is_enum_v<Value>)
        value = in.enumerator<Value>();
    else if constexpr (std::is_same_v<Value, double>)
        value = in.real();
    else if constexpr (std::signed_integral<Value>)
        value = static_cast<Value>(in.signed_number(Limits::min(), Limits::max()));
    else if constexpr (std::unsigned_integral<Value>)
        value = static_cast<Value>(in.number(Limits::max()));
    else if constexpr (std::is_same_v<Value, std::string>)
        value = in.string();
    else if constexpr (std::is_same_v<Value, std::vector<int>>)
        value = in.ranks(max_ranks);
    else
        for (auto left = in.count(most_of<Value>); left > 0; --left) read(in, value.emplace_back());
}

}  // namespace guozhuang::protocol
