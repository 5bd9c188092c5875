#include "baselines/mpi_types.hpp"

#include <array>
#include <stdexcept>
#include <string>

namespace guozhuang::perf {

MPI_Datatype mpi_type(DType dtype) {
    switch (dtype) {
        case DType::u8: return MPI_UINT8_T;
        case DType::i8: return MPI_INT8_T;
        case DType::i16: return MPI_INT16_T;
        case DType::i32: return MPI_INT32_T;
        case DType::i64: return MPI_INT64_T;
        case DType::u16: return MPI_UINT16_T;
        case DType::u32: return MPI_UINT32_T;
        case DType::u64: return MPI_UINT64_T;
        case DType::f32: return MPI_FLOAT;
        case DType::f64: return MPI_DOUBLE;
        case DType::boolean:
        case DType::f16:
        case DType::bf16: break;
    }
    throw std::invalid_argument("--peer mpi: MPI does not reduce " + std::string(name_of(dtype)));
}

MPI_Op mpi_op(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum: return MPI_SUM;
        case ReduceOp::min: return MPI_MIN;
        case ReduceOp::max: return MPI_MAX;
        case ReduceOp::product: return MPI_PROD;
        case ReduceOp::average:
        case ReduceOp::adasum: break;
    }
    throw std::invalid_argument("--peer mpi: MPI has no " + std::string(name_of(op)) +
                                "; compare with sum");
}

void check_mpi(int code) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw std::runtime_error(text.data());
}

}  // namespace guozhuang::perf
