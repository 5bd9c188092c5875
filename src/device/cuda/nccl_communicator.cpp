#include "device/cuda/nccl_communicator.hpp"

#include <cstring>
#include <guozhuang/error.hpp>
#include <utility>

#include "device/cuda/cuda_stream.hpp"

namespace guozhuang::device {
namespace {

cudaStream_t native(Stream& stream) {
    return static_cast<cudaStream_t>(stream.ref().native);
}

/// NCCL's type for a dtype that is_in_nccl() allows. A boolean is 0 or 1, so its minimum is "and"
/// and its maximum "or".
ncclDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::i8: return ncclInt8;
        case DType::u8:
        case DType::boolean: return ncclUint8;
        case DType::i32: return ncclInt32;
        case DType::u32: return ncclUint32;
        case DType::i64: return ncclInt64;
        case DType::u64: return ncclUint64;
        case DType::f16: return ncclFloat16;
        case DType::bf16: return ncclBfloat16;
        case DType::f32: return ncclFloat32;
        case DType::f64: return ncclFloat64;
        case DType::i16:
        case DType::u16: break;
    }
    throw Error(ErrorCode::internal, "NCCL does not reduce " + std::string(name_of(dtype)));
}

ncclRedOp_t op_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::average: return ncclSum;
        case ReduceOp::min: return ncclMin;
        case ReduceOp::max: return ncclMax;
        case ReduceOp::product: return ncclProd;
        case ReduceOp::adasum: break;
    }
    throw Error(ErrorCode::internal, "NCCL has no " + std::string(name_of(op)));
}

/// For headers of an NCCL without such a limit, too; require_cta_limit() refuses those.
template <class Config>
void limit_ctas(Config& config, int most) {
    if constexpr (requires { config.maxCTAs; }) config.maxCTAs = most;
}

ncclConfig_t config_of(const CudaDevice& device) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (const int limit = device.processor_limit(); limit != 0) limit_ctas(config, limit);
    return config;
}

}  // namespace

CudaNcclCommunicator::CudaNcclCommunicator(const NcclFunctions& nccl, const NcclId& id, int rank,
                                           int ranks, CudaDevice& device)
    : nccl_(nccl), device_(device) {
    const auto here = device_.use();
    ncclUniqueId native_id;
    static_assert(sizeof native_id == sizeof id);
    std::memcpy(&native_id, id.data(), sizeof native_id);
    auto config = config_of(device_);
    const auto result = nccl_.connect(&communicator_, ranks, native_id, rank, &config);
    if (result == ncclSuccess || result == ncclInProgress) return;
    const auto failed = std::exchange(communicator_, nullptr);
    try {
        check_nccl(nccl_, result, "cannot connect", nullptr);
    } catch (...) {
        if (failed) nccl_.abort(failed);
        throw;
    }
}

CudaNcclCommunicator::~CudaNcclCommunicator() {
    try {
        const auto here = device_.use();
        has_ended_ ? nccl_.destroy(communicator_) : nccl_.abort(communicator_);
    } catch (const Error&) {
        // The device has failed before, which was reported, or the process is at its end.
    }
}

bool CudaNcclCommunicator::is_ready() {
    const auto here = device_.use();
    ncclResult_t state = ncclSuccess;
    check(nccl_.async_error(communicator_, &state), "cannot tell its state");
    check(state, "it has failed");
    has_ended_ = is_ending_ && state == ncclSuccess;
    return state == ncclSuccess;
}

void CudaNcclCommunicator::group(const std::function<void()>& calls) {
    const auto here = device_.use();
    check(nccl_.group_start(), "cannot begin a group");
    try {
        calls();
    } catch (...) {
        nccl_.group_end();
        throw;
    }
    check(nccl_.group_end(), "cannot end a group");
}

void CudaNcclCommunicator::allreduce(Stream& stream, const Reduction& reduction,
                                     std::span<std::byte> memory) {
    check(nccl_.allreduce(memory.data(), memory.data(), memory.size() / size_of(reduction.dtype),
                          type_of(reduction.dtype), op_of(reduction.op), communicator_,
                          native(stream)),
          "cannot allreduce");
}

void CudaNcclCommunicator::broadcast(Stream& stream, std::span<std::byte> into,
                                     std::span<const std::byte> from, int root) {
    check(nccl_.broadcast(from.data(), into.data(), into.size(), ncclUint8, root, communicator_,
                          native(stream)),
          "cannot broadcast");
}

void CudaNcclCommunicator::all_gather(Stream& stream, std::span<std::byte> into,
                                      std::span<const std::byte> from) {
    check(nccl_.all_gather(from.data(), into.data(), from.size(), ncclUint8, communicator_,
                           native(stream)),
          "cannot all-gather");
}

void CudaNcclCommunicator::reduce_scatter(Stream& stream, const Reduction& reduction,
                                          std::span<std::byte> into,
                                          std::span<const std::byte> from) {
    check(nccl_.reduce_scatter(from.data(), into.data(), into.size() / size_of(reduction.dtype),
                               type_of(reduction.dtype), op_of(reduction.op), communicator_,
                               native(stream)),
          "cannot reduce-scatter");
}

void CudaNcclCommunicator::reduce(Stream& stream, const Reduction& reduction,
                                  std::span<std::byte> into, std::span<const std::byte> from,
                                  int root) {
    check(nccl_.reduce(from.data(), into.data(), from.size() / size_of(reduction.dtype),
                       type_of(reduction.dtype), op_of(reduction.op), root, communicator_,
                       native(stream)),
          "cannot reduce");
}

void CudaNcclCommunicator::send(Stream& stream, std::span<const std::byte> from, int to) {
    check(nccl_.send(from.data(), from.size(), ncclUint8, to, communicator_, native(stream)),
          "cannot send");
}

void CudaNcclCommunicator::receive(Stream& stream, std::span<std::byte> into, int from) {
    check(nccl_.receive(into.data(), into.size(), ncclUint8, from, communicator_, native(stream)),
          "cannot receive");
}

void CudaNcclCommunicator::finalize() {
    const auto here = device_.use();
    check(nccl_.finalize(communicator_), "cannot finalize");
    is_ending_ = true;
}

}  // namespace guozhuang::device
