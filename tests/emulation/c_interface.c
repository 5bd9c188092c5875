// The C interface with tensors on emulated GPUs, whose streams order everything.
#define _DEFAULT_SOURCE  // usleep
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

/// Checks that the memory holds `value` when the stream's work is done.
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

static void wait_a_while(void* unused) {
    (void)unused;
    usleep(100000);
}

/// As fill(), but behind work that takes long; the caller does not wait.
static void fill_late(float* memory, const float* values, cudaStream_t stream) {
    CHECK(cudaLaunchHostFunc(stream, wait_a_while, NULL) == cudaSuccess);
    CHECK(cudaMemcpyAsync(memory, values, BYTES, cudaMemcpyHostToDevice, stream) == cudaSuccess);
}

/// A trainer that works on another stream than that of the options, and then on the first again.
static void test_changing_streams(float* gradients, const GzStream* stream, const GzStream* other) {
    const GzStream* streams[] = {other, stream};
    const GzParameter parameter = {"weights", on_gpu(gradients), on_gpu(gradients)};
    GzReducer* reducer = NULL;
    GzReducerOptions options = GZ_REDUCER_OPTIONS_INIT;
    void* values = NULL;
    options.stream = stream;
    OK(gz_reducer_create(&parameter, 1, &options, &reducer));
    CHECK(cudaMallocHost(&values, BYTES) == cudaSuccess);
    for (int turn = 0; turn < 2; ++turn) {
        for (int i = 0; i < COUNT; ++i) ((float*)values)[i] = (float)(4 * turn + 2 * own_rank());
        fill_late(gradients, values, streams[turn]->native);
        OK(gz_reducer_set_stream(reducer, streams[turn]));
        OK(gz_reducer_mark(reducer, 0));
        OK(gz_reducer_finish_pass(reducer, NULL, NULL, NULL));
        expect(gradients, (float)(4 * turn + rank_count() - 1), streams[turn]->native);
    }
    gz_reducer_free(reducer);
    CHECK(cudaFreeHost(values) == cudaSuccess);
}

/// A plan's bundle that was made on two streams.
static void test_two_streams(float* memory, const GzStream* stream, const GzStream* other) {
    const GzStream streams[] = {*stream, *other};
    const size_t counts[] = {1};
    const GzNamedTensor tensor = {"tensor", on_gpu(memory)};
    GzPlan* plan = NULL;
    void* values = NULL;
    OK(gz_plan_create(&tensor, counts, 1, NULL, &plan));
    CHECK(cudaMallocHost(&values, BYTES) == cudaSuccess);
    for (int i = 0; i < COUNT; ++i) ((float*)values)[i] = (float)(2 * own_rank());
    fill_late(memory, values, other->native);
    OK(gz_plan_ready_streams(plan, 0, streams, 2));
    OK(gz_plan_wait_streams(plan, stream, 1));
    expect(memory, (float)(rank_count() - 1), stream->native);
    gz_plan_free(plan);
    CHECK(cudaFreeHost(values) == cudaSuccess);
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
    cudaStream_t native = NULL, other_native = NULL;
    alarm(SECONDS_TO_HANG);
    OK(gz_init(NULL));
    CHECK(cudaMalloc(&values, BYTES) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&other_native, cudaStreamNonBlocking) == cudaSuccess);
    const GzStream stream = {gpu, native}, other = {gpu, other_native};
    OK(gz_try_devices());
    OK(gz_arena_create(2 * BYTES, &gpu, &arena));
    OK(gz_arena_allocate(arena, BYTES, 0, &gradients));
    test_operations(values, &stream);
    test_training(values, gradients, &stream);
    test_changing_streams(gradients, &stream, &other);
    test_two_streams(values, &stream, &other);
    gz_arena_free(arena);
    OK(gz_shutdown());
    CHECK(cudaStreamDestroy(other_native) == cudaSuccess);
    CHECK(cudaStreamDestroy(native) == cudaSuccess && cudaFree(values) == cudaSuccess);
    return failed_checks > 0;
}
