// The numbers of the C header are those of the C++ ones.
#include <guozhuang.h>

#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/sampler.hpp>
#include <guozhuang/tensor.hpp>
#include <guozhuang/types.hpp>

namespace guozhuang::c {
namespace {

template <class Enum>
constexpr bool same(std::int32_t number, Enum value) {
    return number == static_cast<std::int32_t>(value);
}
constexpr bool same_error(GzStatus status, ErrorCode code) {
    return same(status - 1, code);
}
constexpr bool same_dtype(GzDType number, DType dtype) {
    return same(number - 1, dtype);
}

static_assert(same_error(GZ_ERROR_INVALID_ARGUMENT, ErrorCode::invalid_argument));
static_assert(same_error(GZ_ERROR_DUPLICATE_NAME, ErrorCode::duplicate_name));
static_assert(same_error(GZ_ERROR_NOT_INITIALISED, ErrorCode::not_initialised));
static_assert(same_error(GZ_ERROR_CONFIGURATION, ErrorCode::configuration));
static_assert(same_error(GZ_ERROR_MISMATCH, ErrorCode::mismatch));
static_assert(same_error(GZ_ERROR_DEPARTED, ErrorCode::departed));
static_assert(same_error(GZ_ERROR_DISCARDED, ErrorCode::discarded));
static_assert(same_error(GZ_ERROR_TIMEOUT, ErrorCode::timeout));
static_assert(same_error(GZ_ERROR_ABORTED, ErrorCode::aborted));
static_assert(same_error(GZ_ERROR_RANK_DIED, ErrorCode::rank_died));
static_assert(same_error(GZ_ERROR_WIRE, ErrorCode::wire));
static_assert(same_error(GZ_ERROR_OUT_OF_MEMORY, ErrorCode::out_of_memory));
static_assert(same_error(GZ_ERROR_UNAVAILABLE, ErrorCode::unavailable));
static_assert(same_error(GZ_ERROR_INTERNAL, ErrorCode::internal));
static_assert(same_error(GZ_ERROR_INTERNAL, last_of(ErrorCode{})));

static_assert(same_dtype(GZ_U8, DType::u8) && same_dtype(GZ_I8, DType::i8) &&
              same_dtype(GZ_I16, DType::i16));
static_assert(same_dtype(GZ_I32, DType::i32) && same_dtype(GZ_I64, DType::i64));
static_assert(same_dtype(GZ_BOOLEAN, DType::boolean) && same_dtype(GZ_F16, DType::f16));
static_assert(same_dtype(GZ_BF16, DType::bf16) && same_dtype(GZ_F32, DType::f32) &&
              same_dtype(GZ_F64, DType::f64));
static_assert(same_dtype(GZ_U16, DType::u16) && same_dtype(GZ_U32, DType::u32) &&
              same_dtype(GZ_U64, DType::u64));
static_assert(same_dtype(GZ_U64, last_of(DType{})));

static_assert(same(GZ_SUM, ReduceOp::sum) && same(GZ_AVERAGE, ReduceOp::average));
static_assert(same(GZ_MIN, ReduceOp::min) && same(GZ_MAX, ReduceOp::max));
static_assert(same(GZ_PRODUCT, ReduceOp::product) && same(GZ_ADASUM, ReduceOp::adasum));
static_assert(same(GZ_ADASUM, last_of(ReduceOp{})));

static_assert(same(GZ_HOST, DeviceKind::host) && same(GZ_CUDA, DeviceKind::cuda));
static_assert(same(GZ_CUDA, last_of(DeviceKind{})));

static_assert(same(GZ_LOG_DEBUG, LogLevel::debug) && same(GZ_LOG_INFO, LogLevel::info));
static_assert(same(GZ_LOG_WARNING, LogLevel::warning) && same(GZ_LOG_ERROR, LogLevel::error));
static_assert(same(GZ_LOG_OFF, LogLevel::off));

static_assert(same(GZ_PAD, Tail::pad) && same(GZ_DROP, Tail::drop));
static_assert(same(GZ_UNEVEN, Tail::uneven));
static_assert(same(GZ_AS_IS, Memory::as_is) && same(GZ_SHARE, Memory::share));

}  // namespace
}  // namespace guozhuang::c
