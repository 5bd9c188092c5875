// Several inputs, reduced element by element to several outputs.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "device/cuda/kernel_elements.hpp"
#include "device/cuda/kernel_shape.hpp"
#include "device/cuda/reduce_kernel.hpp"

namespace guozhuang::device {
namespace {

/// Wide enough that narrow integers are not promoted to a signed type, in which wrapping would be
/// undefined.
template <class T>
using Wrapping = std::common_type_t<unsigned, std::make_unsigned_t<T>>;

struct Sum {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_integral_v<T>)
            return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
        else
            return a + b;
    }
};
struct Product {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_integral_v<T>)
            return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
        else
            return a * b;
    }
};
/// If neither float is less, they are equal (then -0 counts as below +0), or one is NaN, and so is
/// the result, their sum.
struct Min {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>)
            return a < b ? a : b < a ? b : a == b ? (signbit(a) ? a : b) : a + b;
        else
            return a < b ? a : b;
    }
};
struct Max {
    template <class T>
    static __device__ T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>)
            return a > b ? a : b > a ? b : a == b ? (signbit(a) ? b : a) : a + b;
        else
            return a > b ? a : b;
    }
};

/// One element of each input, or a pack of them, lane by lane. Combines along the balanced tree,
/// split at the largest power of two, like a binary counter: digit d exists if bit d of the count
/// is set, and holds 2^d adjacent inputs.
template <class Op, class T, unsigned lanes>
class TreeReduction {
public:
    __device__ void add(const T* elements) {
        Partial carry[lanes];
#pragma unroll
        for (unsigned lane = 0; lane < lanes; ++lane)
            carry[lane] = Arithmetic<T>::load(elements[lane]);
        bool is_kept = false;
#pragma unroll
        for (unsigned digit = 0; digit < digits; ++digit) {
            if (is_kept) continue;
            is_kept = (count_ >> digit & 1) == 0;
#pragma unroll
            for (unsigned lane = 0; lane < lanes; ++lane) {
                if (is_kept)
                    digits_[digit][lane] = carry[lane];
                else
                    carry[lane] = Op::apply(digits_[digit][lane], carry[lane]);
            }
        }
        ++count_;
    }

    __device__ void finish(T* elements, const Finish& finish) const {
        Partial sum[lanes] = {};
        bool is_empty = true;
#pragma unroll
        for (unsigned digit = 0; digit < digits; ++digit) {
            if ((count_ >> digit & 1) == 0) continue;
#pragma unroll
            for (unsigned lane = 0; lane < lanes; ++lane)
                sum[lane] =
                    is_empty ? digits_[digit][lane] : Op::apply(digits_[digit][lane], sum[lane]);
            is_empty = false;
        }
#pragma unroll
        for (unsigned lane = 0; lane < lanes; ++lane)
            elements[lane] = Arithmetic<T>::store(finished(sum[lane], finish));
    }

private:
    using Partial = decltype(Arithmetic<T>::load(T()));
    static constexpr unsigned digits = 5;
    static_assert(Reduction::most_inputs < 1u << digits);

    unsigned count_ = 0;
    Partial digits_[digits][lanes];
};

/// The number of inputs whose packs a thread loads at the same time. With four inputs of 16-bit
/// integers, CUDA 13 spills registers for compute capability 10.0 and 12.0.
template <class T>
constexpr unsigned read_at_once = std::is_integral_v<T> && sizeof(T) == 2 ? 2 : 4;

/// Where the inputs and outputs begin.
template <class T>
struct Addresses {
    const T* inputs[Reduction::most_inputs];
    T* outputs[Reduction::most_inputs];
    unsigned input_count, output_count;
};

template <class Op, class T>
__global__ void __launch_bounds__(threads_per_block)
    reduce_kernel(const __grid_constant__ Addresses<T> at, Extent extent, Finish finish) {
    const std::size_t first = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t p = first; p < extent.packs; p += stride) {
        const std::size_t begin = extent.head + p * Pack<T>::lanes;
        TreeReduction<Op, T, Pack<T>::lanes> tree;
#pragma unroll read_at_once<T>
        for (unsigned i = 0; i < at.input_count; ++i) {
            const Pack<T> input = *reinterpret_cast<const Pack<T>*>(at.inputs[i] + begin);
            tree.add(input.lane);
        }
        Pack<T> output;
        tree.finish(output.lane, finish);
        for (unsigned o = 0; o < at.output_count; ++o)
            write_pack(at.outputs[o] + begin, output);
    }
    const std::size_t packed = extent.packs * Pack<T>::lanes;
    for (std::size_t i = first; i < extent.count - packed; i += stride) {
        const std::size_t element = i < extent.head ? i : i + packed;
        TreeReduction<Op, T, 1> tree;
        for (unsigned k = 0; k < at.input_count; ++k) tree.add(at.inputs[k] + element);
        T output;
        tree.finish(&output, finish);
        for (unsigned o = 0; o < at.output_count; ++o) at.outputs[o][element] = output;
    }
}

/// Calls action.run<Op, T>(), of the kernel for an operation on T, and returns its answer.
template <class T, class Action>
cudaError_t with_kernel_on(ReduceOp op, const Action& action) {
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::average: return action.template run<Sum, T>();
        case ReduceOp::product: return action.template run<Product, T>();
        case ReduceOp::min: return action.template run<Min, T>();
        case ReduceOp::max: return action.template run<Max, T>();
        case ReduceOp::adasum: break;
    }
    return cudaErrorInvalidValue;
}

template <class Action>
cudaError_t with_kernel(ReduceOp op, DType dtype, const Action& action) {
    switch (dtype) {
        case DType::boolean:  // bytes 0 and 1: min is "and", max is "or"
        case DType::u8: return with_kernel_on<std::uint8_t>(op, action);
        case DType::i8: return with_kernel_on<std::int8_t>(op, action);
        case DType::i16: return with_kernel_on<std::int16_t>(op, action);
        case DType::i32: return with_kernel_on<std::int32_t>(op, action);
        case DType::i64: return with_kernel_on<std::int64_t>(op, action);
        case DType::u16: return with_kernel_on<std::uint16_t>(op, action);
        case DType::u32: return with_kernel_on<std::uint32_t>(op, action);
        case DType::u64: return with_kernel_on<std::uint64_t>(op, action);
        case DType::f16: return with_kernel_on<__half>(op, action);
        case DType::bf16: return with_kernel_on<__nv_bfloat16>(op, action);
        case DType::f32: return with_kernel_on<float>(op, action);
        case DType::f64: return with_kernel_on<double>(op, action);
    }
    return cudaErrorInvalidValue;
}

struct Launch {
    const ReduceLaunch& what;
    const Multiprocessors& processors;
    cudaStream_t stream;

    template <class Op, class T>
    cudaError_t run() const {
        Addresses<T> at{};
        std::vector<const void*> sides;
        for (const auto& input : what.inputs) {
            sides.push_back(input.data());
            at.inputs[at.input_count++] = reinterpret_cast<const T*>(input.data());
        }
        for (const auto& output : what.outputs) {
            sides.push_back(output.data());
            at.outputs[at.output_count++] = reinterpret_cast<T*>(output.data());
        }
        auto extent = extent_of<T>(what.outputs.front().size() / sizeof(T), sides);
        const auto& [op, dtype, contributors, postscale] = what.reduction;
        Finish finish{op == ReduceOp::average ? contributors : 1, postscale};
        const auto work = std::max(extent.packs, extent.count - extent.packs * Pack<T>::lanes);
        void* arguments[] = {&at, &extent, &finish};
        // Not <<<>>>: this returns the error of this launch, not the last one of the thread.
        const auto blocks = processors.blocks_for(work, reduce_kernel<Op, T>);
        return cudaLaunchKernel(reduce_kernel<Op, T>, dim3(blocks), dim3(threads_per_block),
                                arguments, 0, stream);
    }
};

struct Load {
    Occupancy& occupancy;

    template <class Op, class T>
    cudaError_t run() const {
        return occupancy.load(reduce_kernel<Op, T>);
    }
};

}  // namespace

cudaError_t launch_reduce(const ReduceLaunch& launch, const Multiprocessors& processors,
                          cudaStream_t stream) {
    return with_kernel(launch.reduction.op, launch.reduction.dtype,
                       Launch{launch, processors, stream});
}

cudaError_t load_reduce_kernels(Occupancy& occupancy) {
    for (const auto dtype : all_dtypes) {
        for (const auto op : all_reduce_ops) {
            if (op == ReduceOp::adasum) continue;  // it has no kernel
            if (const auto status = with_kernel(op, dtype, Load{occupancy}); status != cudaSuccess)
                return status;
        }
    }
    return cudaSuccess;
}

}  // namespace guozhuang::device
