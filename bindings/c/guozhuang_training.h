#ifndef GUOZHUANG_TRAINING_H
#define GUOZHUANG_TRAINING_H

/// The part of guozhuang.h, which includes it, for training: <guozhuang/optimizer.hpp>,
/// <guozhuang/training.hpp> and <guozhuang/sampler.hpp>.
#include "guozhuang.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct GzReducerOptions {
    size_t size;
    const char* name;  ///< NULL: numbered
    GzReduceOp op;
    int32_t backward_passes_per_step;
    double gradient_scale;
    size_t bundle_bytes;
    size_t first_bundle_bytes;
    const GzStream* stream;
    const GzProcessSet* process_set;
    int32_t check_values;
    GzMemory memory;
    /// NULL, or a number for each parameter, one at least, in memory that outlives the reducer.
    float* uses;
    const int32_t* groups;  ///< NULL, or the group of each parameter; less than 0: none
} GzReducerOptions;
#define GZ_REDUCER_OPTIONS_INIT                                                               \
    {                                                                                         \
        sizeof(GzReducerOptions), NULL, GZ_AVERAGE, 1, 1, 25u << 20, 1u << 20, NULL, NULL, 1, \
            GZ_AS_IS, NULL, NULL                                                              \
    }

/// Makes a single-process optimizer a distributed one: guozhuang::GradientReducer.
/// gz_reducer_finish_pass() does what step() of a DistributedOptimizer does.
typedef struct GzReducer GzReducer;
GZ_API GzStatus gz_reducer_create(const GzParameter* parameters, size_t count,
                                  const GzReducerOptions* options, GzReducer** reducer);
/// For backward: the gradient of that parameter (by its number in the list, or by name) is final.
GZ_API GzStatus gz_reducer_mark(GzReducer* reducer, size_t parameter);
GZ_API GzStatus gz_reducer_mark_name(GzReducer* reducer, const char* parameter);
/// Later marks and waits are on this stream instead of that of the options. A bundle waits for all
/// streams on which its gradients were marked, which must live until the pass has ended.
GZ_API GzStatus gz_reducer_set_stream(GzReducer* reducer, const GzStream* stream);
/// Sends what gz_reducer_synchronize() waits for.
GZ_API GzStatus gz_reducer_close(GzReducer* reducer);
GZ_API GzStatus gz_reducer_synchronize(GzReducer* reducer);
/// For at most that long; as gz_handle_wait_for().
GZ_API GzStatus gz_reducer_synchronize_for(GzReducer* reducer, int64_t limit_us, int* done);
/// Waits for the averages, then calls `step` (NULL: nothing). If that fails, another call only
/// calls it again; or call discard. `stepped` (may be NULL): 0 after a pass that only accumulates.
GZ_API GzStatus gz_reducer_finish_pass(GzReducer* reducer, int (*step)(void* context),
                                       void* context, int* stepped);
GZ_API GzStatus gz_reducer_discard(GzReducer* reducer, const char* reason);
/// Between these two gradients only accumulate (no_sync). Counted.
GZ_API GzStatus gz_reducer_pause(GzReducer* reducer);
GZ_API GzStatus gz_reducer_resume(GzReducer* reducer);
GZ_API GzStatus gz_reducer_is_used(const GzReducer* reducer, size_t parameter, int* used);
GZ_API GzStatus gz_reducer_is_closed(const GzReducer* reducer, int* closed);
GZ_API GzStatus gz_reducer_is_synchronised(const GzReducer* reducer, int* synchronised);
GZ_API void gz_reducer_free(GzReducer* reducer);  ///< as gz_plan_free()

GZ_API GzStatus gz_broadcast_parameters(const GzParameter* parameters, size_t count, int root,
                                        const GzProcessSet* set);
/// guozhuang::broadcast_optimizer_state, of these tensors.
GZ_API GzStatus gz_broadcast_optimizer_state(const GzNamedTensor* tensors, size_t count, int root,
                                             const GzProcessSet* set);
GZ_API GzStatus gz_check_consistent(const GzParameter* parameters, size_t count,
                                    const GzStream* stream, const GzProcessSet* set);
/// `norm` (may be NULL) is the norm before. `stream` NULL: the default streams.
GZ_API GzStatus gz_clip_by_global_norm(const GzParameter* parameters, size_t count, double max_norm,
                                       const GzStream* stream, double* norm);
/// Replaces each value by its mean over the ranks.
GZ_API GzStatus gz_average_metrics(const char* const* keys, double* values, size_t count,
                                   const GzProcessSet* set);

GZ_API GzStatus gz_scale_learning_rate(double base_rate, const GzProcessSet* set, double* rate);
/// `batch` is that of one rank.
GZ_API GzStatus gz_steps_per_epoch(size_t samples, size_t batch, const GzProcessSet* set,
                                   size_t* steps);

typedef struct GzBytes GzBytes;  ///< byte strings
/// Gives every rank a copy of root's `bytes`, as one byte string. Other ranks' `bytes` are ignored.
GZ_API GzStatus gz_broadcast_bytes(const void* bytes, size_t count, int root,
                                   const GzProcessSet* set, GzBytes** result);
/// Gives one byte string for each rank.
GZ_API GzStatus gz_all_gather_bytes(const void* bytes, size_t count, const GzProcessSet* set,
                                    GzBytes** result);
GZ_API GzStatus gz_bytes_count(const GzBytes* bytes, size_t* count);
GZ_API GzStatus gz_bytes_get(const GzBytes* bytes, size_t index, const void** data, size_t* count);
GZ_API void gz_bytes_free(GzBytes* bytes);

typedef struct GzSamplerOptions {
    size_t size;
    uint64_t seed;
    int32_t shuffle;
    GzTail tail;
    const GzProcessSet* process_set;
} GzSamplerOptions;
#define GZ_SAMPLER_OPTIONS_INIT \
    { sizeof(GzSamplerOptions), 0, 1, GZ_PAD, NULL }

typedef struct GzSampler GzSampler;  ///< guozhuang::DistributedSampler
GZ_API GzStatus gz_sampler_create(size_t samples, const GzSamplerOptions* options,
                                  GzSampler** sampler);
GZ_API GzStatus gz_sampler_set_epoch(GzSampler* sampler, uint64_t epoch);
/// Leaves out the first `done` samples of the epoch, which all ranks together have used.
GZ_API GzStatus gz_sampler_set_epoch_from(GzSampler* sampler, uint64_t epoch, size_t done);
/// This rank's samples of the epoch; valid until the next epoch is set.
GZ_API GzStatus gz_sampler_indices(const GzSampler* sampler, const size_t** indices, size_t* count);
GZ_API void gz_sampler_free(GzSampler* sampler);

#ifdef __cplusplus
}
#endif

#endif
