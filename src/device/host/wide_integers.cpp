#include "device/host/wide_integers.hpp"

#include <cstring>
#include <guozhuang/error.hpp>
#include <string>

namespace guozhuang::device {
namespace {

/// Calls `convert` with a number of the dtype's type.
template <class Convert>
void for_type_of(DType dtype, const Convert& convert) {
    switch (dtype) {
        case DType::u8: return convert(std::uint8_t{});
        case DType::i8: return convert(std::int8_t{});
        case DType::u16: return convert(std::uint16_t{});
        case DType::i16: return convert(std::int16_t{});
        case DType::u32: return convert(std::uint32_t{});
        case DType::i32: return convert(std::int32_t{});
        default: break;
    }
    throw Error(ErrorCode::internal,
                std::string(name_of(dtype)) + " is no integer of at most 32 bits");
}

}  // namespace

void widen_integers(std::span<std::int64_t> into, DType dtype, std::span<const std::byte> from) {
    for_type_of(dtype, [&]<class T>(T element) {
        for (std::size_t i = 0; i < into.size(); ++i) {
            std::memcpy(&element, from.data() + i * sizeof(T), sizeof(T));
            into[i] = element;  // NOLINT(bugprone-signed-char-misuse): the sign is meant
        }
    });
}

void narrow_integers(DType dtype, std::span<std::byte> into, std::span<const std::int64_t> from) {
    for_type_of(dtype, [&]<class T>(T element) {
        for (std::size_t i = 0; i < from.size(); ++i) {
            element = static_cast<T>(from[i]);
            std::memcpy(into.data() + i * sizeof(T), &element, sizeof(T));
        }
    });
}

}  // namespace guozhuang::device
