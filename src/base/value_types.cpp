#include <fmt/format.h>
#include <fmt/ranges.h>

#include <guozhuang/error.hpp>
#include <guozhuang/tensor.hpp>
#include <guozhuang/types.hpp>
#include <guozhuang/version.hpp>
#include <utility>

#include "collectives/algorithms.hpp"

namespace guozhuang {
namespace {

/// For whatever number an enumeration holds.
template <class Enum, std::size_t n>
constexpr std::string_view pick(const std::string_view (&names)[n], Enum value) noexcept {
    static_assert(n == static_cast<std::size_t>(last_of(Enum{})) + 1, "each enumerator has a name");
    const auto index = static_cast<std::size_t>(value);
    return index < n ? names[index] : "unknown";
}

}  // namespace

const char* version() noexcept {
    return GUOZHUANG_VERSION_STRING;
}

std::string_view name_of(DType dtype) noexcept {
    static constexpr std::string_view names[] = {"u8",   "i8",  "i16", "i32", "i64", "bool", "f16",
                                                 "bf16", "f32", "f64", "u16", "u32", "u64"};
    return pick(names, dtype);
}

std::string_view name_of(ReduceOp op) noexcept {
    static constexpr std::string_view names[] = {"sum", "average", "min",
                                                 "max", "product", "adasum"};
    return pick(names, op);
}

std::string_view name_of(Algorithm algorithm) noexcept {
    const auto index = static_cast<std::size_t>(algorithm);
    return algorithm <= last_of(algorithm) ? selection::algorithms[index].name : "unknown";
}

std::string_view name_of(DeviceKind kind) noexcept {
    static constexpr std::string_view names[] = {"host", "cuda"};
    return pick(names, kind);
}

std::string_view name_of(ErrorCode code) noexcept {
    static constexpr std::string_view names[] = {
        "invalid_argument", "duplicate_name", "not_initialised",
        "configuration",    "mismatch",       "departed",
        "discarded",        "timeout",        "aborted",
        "rank_died",        "wire",           "out_of_memory",
        "unavailable",      "internal"};
    return pick(names, code);
}

void detail::require_elements(const Shape& shape, std::size_t elements) {
    if (count_of(shape) == elements) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TensorView: the shape [{}] has {} elements, but {} were given",
                            fmt::join(shape, ", "), count_of(shape), elements));
}

void detail::throw_not_dense() {
    throw Error(
        ErrorCode::invalid_argument,
        "TensorView: these elements do not lie side by side in memory, as those of a row of a "
        "matrix that is stored by columns do not; "
        "copy them to a vector or matrix of their own, and back if the operation changes them");
}

Error::Error(ErrorCode code, const std::string& message, std::source_location where)
    : Error(code, message, Facts{}, where) {}

Error::Error(ErrorCode code, const std::string& message, Facts facts, std::source_location where)
    : std::runtime_error(message), code_(code), facts_(std::move(facts)), where_(where) {}

Error::~Error() = default;

RankDied::RankDied(const std::string& message, Facts facts, std::source_location where)
    : Error(ErrorCode::rank_died, message, std::move(facts), where) {}

RankDied::~RankDied() = default;

}  // namespace guozhuang
