// The C interface with tensors on emulated GPUs, whose streams order everything.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include "bindings/c/check.h"

enum { COUNT = 1000, BYTES = COUNT * sizeof(float) };
static const int64_t extent = COUNT;
static const GzDevice gpu = {GZ_CUDA, 0};

static float host[COUNT];

/// Enqueues that all elements become the value.
static void fill(float* memory, float value, cudaStream_t stream) {
    for (int i = 0; i < COUNT; ++i) host[i] = value;
    CHECK(cudaMemcpyAsync(memory, host, BYTES, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

/// What the stream's work has made of them.
static void expect(const float* memory, float value, cudaStream_t stream) {
    CHECK(cudaMemcpyAsync(host, memory, BYTES, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(host[0] == value && host[COUNT - 1] == value);
}

static GzTensor on_gpu(float* memory) {
    GzTensor tensor = vector_of(memory, GZ_F32, &extent);
    tensor.device = gpu;
    return tensor;
}

static void test_operations(float* memory, const GzStream* stream) {
    const GzTensor tensor = on_gpu(memory);
    GzTensor gathered;
    GzResult* result = NULL;
    GzHandle* handle = NULL;
    GzOptions options = GZ_OPTIONS_INIT;
    options.stream = stream;
    options.name = "on a GPU";
    fill(memory, 1, stream->native);
    OK(gz_allreduce_async(&tensor, GZ_SUM, &options, &handle));
    OK(gz_handle_wait_stream(handle, stream));
    expect(memory, (float)rank_count(), stream->native);
    gz_handle_free(handle);
    OK(gz_all_gather(&tensor, &options, &result));
    OK(gz_result_tensor(result, 0, &gathered));
    CHECK(gathered.device.kind == GZ_CUDA && gathered.shape[0] == COUNT * rank_count());
    expect(gathered.data, (float)rank_count(), stream->native);
    gz_result_free(result);
}

static int steps;

static int step(void* unused) {
    (void)unused;
    ++steps;
    return 0;
}

static void test_training(float* values, float* gradients, const GzStream* stream) {
    const GzParameter parameter = {"weights", on_gpu(values), on_gpu(gradients)};
    double norm = 0;
    GzReducer* reducer = NULL;
    GzReducerOptions options = GZ_REDUCER_OPTIONS_INIT;
    options.stream = stream;
    fill(values, (float)own_rank(), stream->native);
    OK(gz_broadcast_parameters(&parameter, 1, 0, NULL));
    OK(gz_check_consistent(&parameter, 1, stream, NULL));
    OK(gz_reducer_create(&parameter, 1, &options, &reducer));
    fill(gradients, (float)(2 * own_rank()), stream->native);
    OK(gz_reducer_mark(reducer, 0));
    OK(gz_reducer_finish_pass(reducer, step, NULL, NULL));
    expect(gradients, (float)(rank_count() - 1), stream->native);
    CHECK(steps == 1);
    gz_reducer_free(reducer);
    fill(gradients, 1, stream->native);
    OK(gz_clip_by_global_norm(&parameter, 1, 1e9, stream, &norm));
    CHECK(norm > 31.6 && norm < 31.7);  // the root of 1000
}

int main(void) {
    enum { SECONDS_TO_HANG = 240 };
    GzArena* arena = NULL;
    void *values = NULL, *gradients = NULL;
    cudaStream_t native = NULL;
    alarm(SECONDS_TO_HANG);
    OK(gz_init(NULL));
    CHECK(cudaMalloc(&values, BYTES) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
    const GzStream stream = {gpu, native};
    OK(gz_try_devices());
    OK(gz_arena_create(2 * BYTES, &gpu, &arena));
    OK(gz_arena_allocate(arena, BYTES, 0, &gradients));
    test_operations(values, &stream);
    test_training(values, gradients, &stream);
    gz_arena_free(arena);
    OK(gz_shutdown());
    CHECK(cudaStreamDestroy(native) == cudaSuccess && cudaFree(values) == cudaSuccess);
    return failed_checks > 0;
}
